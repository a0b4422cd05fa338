#include "common/wire/grpc_log.h"

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
      testing::MatchesRegex("[-0-9T:.]+Z ERROR gRPC message=\"a stranger sent 3.*wrong bytes\" "
                            "at=/src/http.cc:7\n"));
}

}  // namespace
}  // namespace quire
