#include "common/wire/grpc_log.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpc/support/log.h>

namespace quire {
namespace {

TEST(GrpcLogTest, IsALineOfOurs) {
  SendGrpcLogToOurs();
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  testing::internal::CaptureStderr();

  gpr_log("/src/http.cc", 7, GPR_LOG_SEVERITY_ERROR, "a stranger sent %d\nwrong bytes", 3);

  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      testing::MatchesRegex("[-0-9T:.]+Z ERROR gRPC text=\"a stranger sent 3.*wrong bytes\" "
                            "at=/src/http.cc:7\n"));
}

TEST(GrpcLogTest, WhoeverFailsToShakeHandsCannotFillTheLog) {
  SendGrpcLogToOurs();
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  testing::internal::CaptureStderr();

  for (int i = 0; i < 1000; ++i) {
    gpr_log("/src/core/tsi/ssl_transport_security.cc", 7, GPR_LOG_SEVERITY_ERROR, "no");
  }
  gpr_log("/src/http.cc", 7, GPR_LOG_SEVERITY_ERROR, "another one");

  const std::string log = testing::internal::GetCapturedStderr();
  const auto num_lines = std::count(log.begin(), log.end(), '\n');
  EXPECT_GE(num_lines, 2) << log;
  EXPECT_LE(num_lines, 20) << "ten seconds passed a few times, if the machine stood still";
  EXPECT_THAT(log, testing::HasSubstr("another one"));
}

}  // namespace
}  // namespace quire
