#include "scheduler/step_log/step_log_format.h"

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "tests/scheduler/step_log/memory_log.h"

namespace quire {
namespace {

using testing::HasSubstr;

struct ReadLog {
  std::vector<StepLogRecord> records;
  absl::Status status;
  bool is_torn = false;
};

ReadLog Read(const std::string& bytes) {
  ReadLog log;
  std::istringstream stream(bytes);
  absl::StatusOr<StepLogReader> reader = StepLogReader::Open(&stream);
  if (!reader.ok()) {
    log.status = reader.status();
    return log;
  }
  for (;;) {
    absl::StatusOr<std::optional<StepLogRecord>> record = reader->Next();
    log.status = record.status();
    log.is_torn = reader->is_torn();
    if (!record.ok() || !record->has_value()) {
      return log;
    }
    log.records.push_back(**record);
  }
}

// Three records of different sizes, the second with strings and vectors.
std::vector<std::string> Parts() {
  StepLogEncoder encoder;
  std::vector<std::string> parts;
  parts.emplace_back(encoder.Head("1.2.3"));
  parts.emplace_back(encoder.Record(CoreConfig{.max_queued_requests = 77}));
  parts.emplace_back(
      encoder.Record(Request{.id = RequestId(5), .prompt_token_ids = {1, 2}, .cache_salt = "s"}));
  parts.emplace_back(encoder.Record(WorkersLost{}));
  return parts;
}

std::string Join(const std::vector<std::string>& parts) {
  std::string bytes;
  for (const std::string& part : parts) {
    bytes += part;
  }
  return bytes;
}

TEST(StepLogFormatTest, RecordsComeBackInOrder) {
  std::istringstream stream(Join(Parts()));
  absl::StatusOr<StepLogReader> reader = StepLogReader::Open(&stream);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->program_version(), "1.2.3");

  const ReadLog log = Read(Join(Parts()));

  ASSERT_TRUE(log.status.ok()) << log.status;
  ASSERT_EQ(log.records.size(), 3U);
  EXPECT_EQ(std::get<CoreConfig>(log.records[0]).max_queued_requests, 77);
  EXPECT_EQ(std::get<Request>(log.records[1]).cache_salt, "s");
  EXPECT_TRUE(std::holds_alternative<WorkersLost>(log.records[2]));
  EXPECT_FALSE(log.is_torn);
}

// Cut at every byte: whole records before the cut are read, and it is known that one was cut.
TEST(StepLogFormatTest, ALastRecordThatIsCutIsTornAndTheRestIsRead) {
  const std::vector<std::string> parts = Parts();
  const std::string bytes = Join(parts);
  for (size_t size = parts[0].size(); size < bytes.size(); ++size) {
    size_t num_whole = 0;
    size_t end = parts[0].size();
    while (end + parts[num_whole + 1].size() <= size) {
      end += parts[++num_whole].size();
    }

    const ReadLog log = Read(bytes.substr(0, size));

    EXPECT_TRUE(log.status.ok()) << size << log.status;
    EXPECT_EQ(log.records.size(), num_whole) << size;
    EXPECT_EQ(log.is_torn, size != end) << size;
  }
}

TEST(StepLogFormatTest, ABitThatIsFlippedAnywhereIsFound) {
  const std::vector<std::string> parts = Parts();
  const std::string bytes = Join(parts);
  for (size_t i = 0; i < 8 * bytes.size(); ++i) {
    std::string flipped = bytes;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));

    const ReadLog log = Read(flipped);

    EXPECT_FALSE(log.status.ok()) << "bit " << i;
    EXPECT_EQ(ReasonOf(log.status), "STEP_LOG");
  }
}

// A length that swallows all records must not make an empty log of them.
TEST(StepLogFormatTest, AHeadThatIsDamagedIsFound) {
  StepLogEncoder encoder;
  std::string bytes(encoder.Head("1.2.3"));
  bytes += std::string(100, 'x');
  bytes[16] = 5 + 100;

  EXPECT_EQ(Read(bytes).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(StepLogFormatTest, ARecordThatIsMissingOrOutOfPlaceIsFound) {
  std::vector<std::string> parts = Parts();
  std::string without = parts[0] + parts[1] + parts[3];
  std::string swapped = parts[0] + parts[2] + parts[1] + parts[3];

  EXPECT_EQ(Read(without).status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(without).records.size(), 1U);
  EXPECT_THAT(std::string(Read(without).status.message()), HasSubstr("record 2"));
  EXPECT_EQ(Read(swapped).status.code(), absl::StatusCode::kDataLoss);
}

TEST(StepLogFormatTest, WhatIsNoLogIsRefused) {
  for (const std::string& bytes : {std::string(), std::string("QUIRELOG"), std::string(100, 'x')}) {
    const ReadLog log = Read(bytes);
    EXPECT_EQ(log.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(log.status), "STEP_LOG");
  }
}

TEST(StepLogFormatTest, ScoredPromptsAreNeitherTokensNorEnds) {
  const EventsTaken taken =
      Summarize({TokenCommitted{}, PromptScored{}, PromptScored{}, SequenceFinished{}});
  EXPECT_EQ(taken.num_tokens, 1U);
  EXPECT_EQ(taken.num_finished, 1U);
}

constexpr StepLimits kLimits = {.num_blocks = 9, .max_model_len = 7, .vocab_size = 5};

TEST(StepLogFormatTest, AnEpochWithoutNextBlocksHasTheBytesOfBefore) {
  ByteWriter before;
  before.Varint(StepLogRecord(EpochBegun{}).index());
  Put(std::pair(uint64_t{3}, uint64_t{4}), before);  // incarnation, epoch
  for (const int32_t limit : {9, 0, 16, 256, 2048, 7, 5, 0}) {
    Put(limit, before);
  }
  Put(true, before);

  StepLogEncoder encoder;
  const std::string record(encoder.Record(EpochBegun{
      .scheduler_incarnation = 3, .group_epoch = 4, .limits = kLimits, .after_crash = true}));

  EXPECT_EQ(record.substr(16), before.bytes());
}

TEST(StepLogFormatTest, AnEpochSaysWhetherNextBlocksAreWanted) {
  EpochBegun begun{.limits = kLimits};
  for (const bool wants : {false, true}) {
    begun.limits.wants_next_blocks = wants;

    const ReadLog log = Read(LogOf({begun, WorkersLost{}}));

    ASSERT_EQ(log.records.size(), 2U) << log.status;
    EXPECT_EQ(std::get<EpochBegun>(log.records[0]).limits, begun.limits);
  }
}

TEST(StepLogFormatTest, AnEpochSaysHowManyBlocksShareAPage) {
  for (const bool wants : {false, true}) {
    EpochBegun begun{.limits = kLimits};
    begun.limits.wants_next_blocks = wants;
    begun.limits.blocks_per_page = 64;

    const ReadLog log = Read(LogOf({begun, WorkersLost{}}));

    ASSERT_EQ(log.records.size(), 2U) << log.status;
    EXPECT_EQ(std::get<EpochBegun>(log.records[0]).limits, begun.limits);
  }
}

TEST(StepLogFormatTest, WhatStandsBehindAnEpochIsOneOrNothing) {
  StepLogEncoder other;
  const std::string epoch(other.Record(EpochBegun{.limits = kLimits}).substr(16));
  for (const std::string tail : {"\2", "\1\1", "\x81", "\1\xff\xff\x7f", "\1\2\1"}) {
    StepLogEncoder encoder;
    std::string bytes(encoder.Head("1.2.3"));
    bytes += encoder.Framed(epoch + tail);

    EXPECT_EQ(Read(bytes).status.code(), absl::StatusCode::kDataLoss);
  }
  StepLogEncoder encoder;
  std::string bytes(encoder.Head("1.2.3"));
  bytes += encoder.Framed(epoch + '\0');

  EXPECT_EQ(Read(bytes).status.code(), absl::StatusCode::kDataLoss);
}

TEST(StepLogFormatTest, ALogOfAnotherLayoutNamesTheVersionThatWroteIt) {
  std::string bytes = Join(Parts());
  bytes[8] = static_cast<char>(bytes[8] ^ 1);

  const ReadLog log = Read(bytes);

  EXPECT_EQ(log.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(log.status.message()), HasSubstr("version 1.2.3"));
}

}  // namespace
}  // namespace quire
