// MemoryLog is a step log in memory, and the way to take it apart and put it together again.
//
// Thread safety: not thread-safe.
#ifndef QUIRE_TESTS_SCHEDULER_STEP_LOG_MEMORY_LOG_H_
#define QUIRE_TESTS_SCHEDULER_STEP_LOG_MEMORY_LOG_H_

#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "scheduler/step_log/replay.h"
#include "scheduler/step_log/step_log_format.h"
#include "scheduler/step_log/step_log_sink.h"

namespace quire {

struct MemoryLog : public StepLogSink {
  void Write(std::string_view more) override { bytes += more; }

  std::string bytes;
};

// REQUIRES: a whole log.
inline std::vector<StepLogRecord> RecordsOf(const std::string& bytes) {
  std::istringstream stream(bytes);
  absl::StatusOr<StepLogReader> reader = StepLogReader::Open(&stream);
  QUIRE_CHECK(reader.ok());
  std::vector<StepLogRecord> records;
  for (;;) {
    absl::StatusOr<std::optional<StepLogRecord>> record = reader->Next();
    QUIRE_CHECK(record.ok());
    if (!record->has_value()) {
      QUIRE_CHECK(!reader->is_torn());
      return records;
    }
    records.push_back(**std::move(record));
  }
}

inline std::string LogOf(const std::vector<StepLogRecord>& records) {
  StepLogEncoder encoder;
  std::string bytes(encoder.Head("test"));
  for (const StepLogRecord& record : records) {
    std::visit([&](const auto& r) { bytes += encoder.Record(r); }, record);
  }
  return bytes;
}

// REQUIRES: a head.
inline ReplayReport ReplayBytes(const std::string& bytes) {
  std::istringstream stream(bytes);
  absl::StatusOr<StepLogReader> reader = StepLogReader::Open(&stream);
  QUIRE_CHECK(reader.ok());
  return Replay(*reader);
}

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_STEP_LOG_MEMORY_LOG_H_
