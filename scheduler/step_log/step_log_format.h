// The format of a step log: a head, then records. All numbers are little-endian.
//
//   head     "QUIRELOG" | layout: u64 | size: u32 | version of the program: size bytes |
//            checksum: u64, of all bytes before it
//   record   size: u32 | ~size: u32 | checksum: u64 | payload: size bytes
//   payload  kind (index in StepLogRecord) | fields (field_codec.h) | tail: later fields (PutTail)
//
// The checksum of a record covers the payload and the previous checksum, so that a changed, missing
// or misplaced record is found. The layout is a hash over the types of all fields except tails. A
// program reads only logs of its own layout: another version plans differently, so a replay of its
// logs would prove nothing.
//
// Thread safety: not thread-safe.
// Cost:          each record takes 16 bytes and about 20 ns more than the payload alone.
#ifndef QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_FORMAT_H_
#define QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_FORMAT_H_

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "scheduler/step_log/byte_stream.h"
#include "scheduler/step_log/field_codec.h"
#include "scheduler/step_log/step_log_record.h"

namespace quire {

// Upper bound on the size of a record, so that a damaged log cannot exhaust memory. The record of
// any request is smaller.
inline constexpr uint32_t kMaxStepLogRecordBytes = 1U << 28;

// Encodes one log, record by record.
class StepLogEncoder {
 public:
  // Returns the head. Call Head once, before the other methods. The bytes that a method returns are
  // valid until the next call of a method.
  std::string_view Head(std::string_view program_version);

  // Returns the record's bytes. REQUIRES: T is an alternative of StepLogRecord.
  template <typename T>
  std::string_view Record(const T& record) {
    payload_.Clear();
    payload_.Varint(StepLogRecord(std::in_place_type<T>).index());
    Put(record, payload_);
    PutTail(record, payload_);
    return Framed(payload_.bytes());
  }

  // Returns the bytes of a record with this payload. Does not check the payload.
  std::string_view Framed(std::string_view payload);

 private:
  ByteWriter payload_;
  ByteWriter framed_;
  uint64_t checksum_ = 0;  // checksum of the previous record
};

// Reads a log from a stream.
class StepLogReader {
 public:
  // Reads the head. The stream must outlive the reader. Errors: kInvalidArgument STEP_LOG if the
  // stream holds no step log, or a step log with another layout.
  static absl::StatusOr<StepLogReader> Open(std::istream* stream);

  // Returns the next record. Returns nullopt at the end, or if the last record is cut short
  // (is_torn).
  // Errors: kDataLoss STEP_LOG; the message has the number and position of the damaged record.
  absl::StatusOr<std::optional<StepLogRecord>> Next();

  const std::string& program_version() const { return version_; }
  bool is_torn() const { return is_torn_; }
  int64_t num_records() const { return num_records_; }  // records read so far

 private:
  explicit StepLogReader(std::istream* stream) : stream_(stream) {}

  absl::Status ReadHead();
  // Returns false if the stream ends before `size` bytes.
  bool Read(size_t size, std::string& bytes);
  absl::Status Damaged(std::string_view what) const;

  std::istream* stream_;
  std::string version_;
  std::string bytes_;
  uint64_t checksum_ = 0;
  int64_t num_records_ = 0;
  int64_t offset_ = 0;  // bytes read so far
  bool is_torn_ = false;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_FORMAT_H_
