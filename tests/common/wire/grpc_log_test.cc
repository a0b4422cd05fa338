#include "common/wire/grpc_log.h"

#include <algorithm>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpc/support/log.h>

#include "tests/support/capture_log.h"

namespace quire {
namespace {

TEST(GrpcLogTest, IsALineOfOurs) {
  SendGrpcLogToOurs();
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  CaptureStderr();

  gpr_log("/src/http.cc", 7, GPR_LOG_SEVERITY_ERROR, "a stranger sent %d\nwrong bytes", 3);

  EXPECT_THAT(
      GetCapturedStderr(),
      testing::MatchesRegex("[-0-9T:.]+Z ERROR gRPC text=\"a stranger sent 3.*wrong bytes\" "
                            "at=/src/http.cc:7\n"));
}

TEST(GrpcLogTest, NoLineOfTheLibraryCanFillTheLog) {
  SendGrpcLogToOurs();
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  for (const char* file : {"/src/core/tsi/ssl_transport_security.cc", "/src/core/metadata.cc"}) {
    CaptureStderr();

    for (int i = 0; i < 1000; ++i) {
      gpr_log(file, 7, GPR_LOG_SEVERITY_ERROR, "no");
    }
    gpr_log(file, 8, GPR_LOG_SEVERITY_ERROR, "another one");

    const std::string log = GetCapturedStderr();
    const auto num_lines = std::count(log.begin(), log.end(), '\n');
    EXPECT_GE(num_lines, 2) << log;
    EXPECT_LE(num_lines, 20) << "ten seconds passed a few times, if the machine stood still";
    EXPECT_THAT(log, testing::HasSubstr("another one"));
  }
}

TEST(GrpcLogTest, WhoeverAskedToSeeMoreSeesAll) {
  SendGrpcLogToOurs();
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_INFO);
  CaptureStderr();

  for (int i = 0; i < 30; ++i) {
    gpr_log("/src/trace.cc", 7, GPR_LOG_SEVERITY_INFO, "a trace");
  }

  const std::string log = GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 30);
}

TEST(GrpcLogTest, AStrangersBytesAreCutAndPrintable) {
  SendGrpcLogToOurs();
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  CaptureStderr();

  const std::string bytes = "\x1b[2J\xc2\x9b\x7f" + std::string(1000, 'x');
  gpr_log("/src/long.cc", 7, GPR_LOG_SEVERITY_ERROR, "%s", bytes.c_str());

  EXPECT_THAT(GetCapturedStderr(),
              testing::EndsWith("Z ERROR gRPC text=?[2J???" + std::string(193, 'x') +
                                " at=/src/long.cc:7\n"));
}

TEST(GrpcLogLimitTest, SaysHowManyLinesOfAPlaceWereLeftOut) {
  GrpcLogLimit limit;
  const Instant begin = 77 * kNanosPerSecond;
  EXPECT_EQ(limit.Admit("a.cc", 1, begin), 0);
  EXPECT_EQ(limit.Admit("a.cc", 1, begin + 1), std::nullopt);
  EXPECT_EQ(limit.Admit("a.cc", 1, begin + GrpcLogLimit::kIntervalNs - 1), std::nullopt);
  EXPECT_EQ(limit.Admit("a.cc", 2, begin + 1), 0) << "another line";
  EXPECT_EQ(limit.Admit("b.cc", 1, begin + 1), 0) << "another file";

  EXPECT_EQ(limit.Admit("a.cc", 1, begin + GrpcLogLimit::kIntervalNs), 2);
  EXPECT_EQ(limit.Admit("a.cc", 1, begin + 2 * GrpcLogLimit::kIntervalNs), 0);
}

}  // namespace
}  // namespace quire
