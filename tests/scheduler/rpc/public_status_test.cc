#include "scheduler/rpc/public_status.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/wire/grpc_status.h"

namespace quire {
namespace {

class PublicStatusTest : public testing::TestWithParam<std::string> {};

TEST_P(PublicStatusTest, WhoIsRefusedForTheQueueComesBackWhenItHasDrained) {
  std::set<absl::Duration> delays;
  for (int i = 0; i < 100; ++i) {
    const absl::Duration delay = RetryDelayFor(GetParam(), absl::Seconds(20));
    EXPECT_GE(delay, absl::Seconds(16));
    EXPECT_LE(delay, absl::Seconds(24));
    delays.insert(delay);
  }
  EXPECT_GT(delays.size(), 50U) << "not all together";
}

TEST_P(PublicStatusTest, TheDelayIsBounded) {
  EXPECT_GE(RetryDelayFor(GetParam(), absl::Microseconds(1)), absl::Milliseconds(80));
  EXPECT_LE(RetryDelayFor(GetParam(), absl::Hours(1)), absl::Seconds(72));
}

TEST_P(PublicStatusTest, WithoutAnEstimateItIsASecond) {
  const absl::Duration delay = RetryDelayFor(GetParam(), absl::ZeroDuration());
  EXPECT_GE(delay, absl::Milliseconds(800));
  EXPECT_LE(delay, absl::Milliseconds(1200));
}

TEST_P(PublicStatusTest, TheStatusCarriesIt) {
  const grpc::Status status = ToPublicStatus(
      Error(absl::StatusCode::kResourceExhausted, GetParam(), "server: full"), absl::Seconds(20));
  EXPECT_GE(RetryDelayOf(status).value_or(absl::ZeroDuration()), absl::Seconds(16));
}

INSTANTIATE_TEST_SUITE_P(
    OfTheQueue,
    PublicStatusTest,
    testing::Values("QUEUE_FULL", "QUEUE_TOKENS", "TENANT_LIMIT", "DEADLINE_UNREACHABLE"),
    [](const auto& param) { return param.param; });

TEST(PublicStatusReasonTest, WorkersAreNotWaitedForByTheQueue) {
  EXPECT_LE(RetryDelayFor("LOADING", absl::Seconds(20)), absl::Milliseconds(2400));
  EXPECT_EQ(RetryDelayFor("TOKEN_ID_RANGE", absl::Seconds(20)), absl::ZeroDuration());
}

}  // namespace
}  // namespace quire
