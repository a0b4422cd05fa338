#include "deploy/cli/replay_command.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/scheduler_core.h"
#include "scheduler/step_log/step_log_format.h"
#include "tests/deploy/ran_command.h"

namespace quire {
namespace {

using testing::HasSubstr;

class ReplayCommandTest : public testing::Test {
 public:
  ReplayCommandTest()
      : path_(std::filesystem::path(testing::TempDir()) /
              ("replay_command_test." + std::to_string(::getpid()))) {}
  ~ReplayCommandTest() override { std::filesystem::remove(path_); }

 protected:
  // One request that is added and aborted before any worker comes.
  std::string Log(AddOutcome outcome) {
    StepLogEncoder encoder;
    std::string bytes(encoder.Head("7.8.9\x1b[2J"));
    bytes += encoder.Record(CoreConfig{});
    bytes += encoder.Record(Request{.id = RequestId(1), .prompt_token_ids = {1}});
    bytes += encoder.Record(CallResult{static_cast<int64_t>(outcome)});
    bytes += encoder.Record(RequestAborted{RequestId(1)});
    bytes += encoder.Record(CallResult{1});
    return bytes;
  }
  RanCommand Replay(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return Capture(RunReplay, {path_});
  }

  const std::string path_;
};

TEST_F(ReplayCommandTest, SaysWhatIsInTheLogAndThatItIsIdentical) {
  const RanCommand ran = Replay(Log(AddOutcome::kQueued));

  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("written by   quire 7.8.9?[2J\n"));
  EXPECT_THAT(ran.out, HasSubstr("records      5\n"));
  EXPECT_THAT(ran.out, HasSubstr("requests     1\n"));
  EXPECT_THAT(ran.out, HasSubstr("identical"));
}

TEST_F(ReplayCommandTest, ADifferenceIsShownAndIsAFailure) {
  const RanCommand ran = Replay(Log(AddOutcome::kQueueFull));

  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out,
              HasSubstr("DIFFERENT: the answer of the core differs after 0 steps\n"
                        "  logged    1\n  replayed  0\n"));
  EXPECT_EQ(ran.out.find("identical"), std::string::npos);
}

TEST_F(ReplayCommandTest, ATornLogIsToldAndIsNoFailure) {
  const std::string log = Log(AddOutcome::kQueued);

  const RanCommand ran = Replay(log.substr(0, log.size() - 1));

  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("records      4\n"));
  EXPECT_THAT(ran.out, HasSubstr("cut short"));
}

TEST_F(ReplayCommandTest, DamageIsAnErrorAfterWhatCameBefore) {
  std::string log = Log(AddOutcome::kQueued);
  log[log.size() - 1] ^= 1;

  const RanCommand ran = Replay(log);

  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("records      4\n"));
  EXPECT_EQ(ran.out.find("identical"), std::string::npos);
  EXPECT_THAT(ran.err, HasSubstr("quire replay: DATA_LOSS STEP_LOG: step log: record 5"));
}

TEST_F(ReplayCommandTest, WhatIsNoLogIsAnError) {
  const RanCommand ran = Replay("hello");

  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, HasSubstr("STEP_LOG: step log: the file is not a step log"));
  EXPECT_EQ(Capture(RunReplay, {path_ + ".none"}).exit_code, 1);
}

TEST_F(ReplayCommandTest, WrongArgumentsShowTheUsage) {
  EXPECT_EQ(Capture(RunReplay, {}).exit_code, 2);
  EXPECT_EQ(Capture(RunReplay, {"a", "b"}).exit_code, 2);
  EXPECT_EQ(Capture(RunReplay, {"--frobnicate"}).exit_code, 2);
  EXPECT_THAT(Capture(RunReplay, {}).err, HasSubstr("usage: quire replay FILE"));
  EXPECT_EQ(Capture(RunReplay, {"--help"}).exit_code, 0);
}

}  // namespace
}  // namespace quire
