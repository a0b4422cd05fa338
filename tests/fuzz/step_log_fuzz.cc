// Reads bytes as a step log, as the payloads of its records, as a file of pinned prefixes, and as
// its lines. They are refused with a reason, or read. Records that were read can be written, read
// again, and replayed without a crash. After a flipped bit, reading ends before the damaged record.
#include <sstream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/sip_hash.h"
#include "scheduler/rpc/prefix_store.h"
#include "tests/fuzz/flip_a_bit.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_verdict.h"
#include "tests/scheduler/step_log/memory_log.h"

namespace {

// Bounds the cost of a replay: records of real servers ask for more.
constexpr int32_t kMaxBlocks = 1000;
constexpr int32_t kMaxSequences = 64;
constexpr int32_t kMaxTokens = 10'000;
constexpr size_t kMaxRecords = 100;

constexpr size_t kFrameBytes = 16;  // in front of a payload

std::string FileOf(std::string_view prefix_lines) {
  const quire::Hash128 hash = quire::SipHash128({}, std::as_bytes(std::span(prefix_lines)));
  return absl::StrFormat(
      "quire pinned prefixes 1 %016x%016x\n%s", hash.high, hash.low, std::string(prefix_lines));
}

void DecodePrefixes(std::string_view text) {
  const auto prefixes = quire::DecodePrefixes(text);
  if (!prefixes.ok()) {
    QUIRE_CHECK_EQ(quire::ReasonOf(prefixes.status()), "PREFIX_FILE");
    return;
  }
  std::string again = quire::EncodePrefixes(*prefixes);
  const auto back = quire::DecodePrefixes(again);
  QUIRE_CHECK(back.ok() && *back == *prefixes);
  quire::FlipABit(&again);
  QUIRE_CHECK(!quire::DecodePrefixes(again).ok());
  quire::is_accepted = true;
}

std::string LogOfPayloads(quire::FuzzInput* input) {
  quire::StepLogEncoder encoder;
  std::string log(encoder.Head("fuzz"));
  while (!input->empty()) {
    const size_t low = input->TakeByte();
    log += encoder.Framed(input->TakeBytes(low + 256 * size_t{input->TakeByte()}));
  }
  return log;
}

bool IsSmall(const quire::StepLogRecord& record) {
  if (const auto* begun = std::get_if<quire::EpochBegun>(&record)) {
    const quire::StepLimits& limits = begun->limits;
    return limits.num_blocks <= kMaxBlocks && limits.num_host_blocks <= kMaxBlocks &&
           limits.max_sequences <= kMaxSequences;
  }
  const auto* request = std::get_if<quire::Request>(&record);
  return request == nullptr ||
         (request->num_sequences <= kMaxSequences && request->max_tokens <= kMaxTokens);
}

// The records before the damage, if there is any, at most kMaxRecords of them. Empty if their
// replay would cost too much.
std::vector<quire::StepLogRecord> RecordsOf(quire::StepLogReader reader) {
  std::vector<quire::StepLogRecord> records;
  for (;;) {
    auto record = reader.Next();
    if (!record.ok()) {
      QUIRE_CHECK_EQ(quire::ReasonOf(record.status()), "STEP_LOG");
      return records;
    }
    if (!record->has_value()) {
      return records;
    }
    if (!IsSmall(**record)) {
      return {};
    }
    records.push_back(**std::move(record));
    if (records.size() == kMaxRecords) {
      return records;
    }
  }
}

// Checks a log whose bytes were changed or left out from `place` on. The reader returns only
// records that lie before `place` in the whole log.
void CheckDamaged(const std::string& log, const std::string& whole, size_t place) {
  std::istringstream stream(log);
  auto reader = quire::StepLogReader::Open(&stream);
  if (!reader.ok()) {
    return;  // in the head
  }
  std::vector<quire::StepLogRecord> records;
  for (auto record = reader->Next(); record.ok() && record->has_value(); record = reader->Next()) {
    records.push_back(**std::move(record));
  }
  const std::string before = quire::LogOf(records);
  QUIRE_CHECK(before.size() <= place && whole.starts_with(before));
}

// A log whose last record has one more byte of payload and a right checksum.
std::string WithAByteMore(const std::vector<quire::StepLogRecord>& records) {
  const std::string_view payload = std::visit(
      [](const auto& record) {
        static auto* const other = new quire::StepLogEncoder();
        return other->Record(record).substr(kFrameBytes);
      },
      records.back());
  quire::StepLogEncoder encoder;
  std::string log(encoder.Head("test"));
  for (size_t i = 0; i + 1 < records.size(); ++i) {
    std::visit([&](const auto& record) { log += encoder.Record(record); }, records[i]);
  }
  log += encoder.Framed(std::string(payload) + '\0');
  return log;
}

// Damages the log in one of three ways, chosen by its size.
void Damage(std::vector<quire::StepLogRecord> records, const std::string& whole) {
  std::string log = whole;
  if (records.empty() || whole.size() % 3 == 0) {
    const size_t place = quire::FlipABit(&log);
    return CheckDamaged(log, whole, place);
  }
  if (whole.size() % 3 == 1) {
    log = WithAByteMore(records);
    records.pop_back();
    return CheckDamaged(log, whole, quire::LogOf(records).size());
  }
  records.resize(1 + whole.size() / 3 % records.size());
  const size_t end = quire::LogOf(records).size();
  records.pop_back();
  const size_t place = quire::LogOf(records).size();  // the record behind it is left out
  CheckDamaged(whole.substr(0, place) + whole.substr(end), whole, place);
}

void Read(const std::string& log) {
  std::istringstream stream(log);
  auto reader = quire::StepLogReader::Open(&stream);
  if (!reader.ok()) {
    QUIRE_CHECK_EQ(quire::ReasonOf(reader.status()), "STEP_LOG");
    return;
  }
  const std::vector<quire::StepLogRecord> records = RecordsOf(*std::move(reader));
  const std::string again = quire::LogOf(records);
  QUIRE_CHECK(quire::LogOf(quire::RecordsOf(again)) == again);
  Damage(records, again);
  const quire::ReplayReport report = quire::ReplayBytes(again);
  QUIRE_CHECK(report.damage.ok() || !quire::ReasonOf(report.damage).empty());
  QUIRE_CHECK_LE(report.num_records, static_cast<int64_t>(records.size()));
  quire::is_accepted = report.damage.ok() && again.size() == log.size();  // all was read
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::FuzzInput input(data, size);
  switch (input.TakeByte()) {
    case 0: {
      const std::string file(input.TakeRest());
      Read(file);
      DecodePrefixes(file);
      break;
    }
    case 1:
      DecodePrefixes(FileOf(input.TakeRest()));
      break;
    default:
      Read(LogOfPayloads(&input));
  }
  return 0;
}
