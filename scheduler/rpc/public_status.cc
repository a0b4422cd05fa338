#include "scheduler/rpc/public_status.h"

#include <algorithm>
#include <optional>
#include <random>

#include "common/base/error.h"
#include "common/wire/grpc_status.h"

namespace quire {
namespace {

struct RetryRule {
  std::string_view reason;
  absl::Duration delay;
  bool uses_queue_drain = false;  // queue_drain, if known, replaces delay
};

constexpr RetryRule kRetryRules[] = {
    {"QUEUE_FULL", absl::Seconds(1), true},
    {"QUEUE_TOKENS", absl::Seconds(1), true},
    {"TENANT_LIMIT", absl::Seconds(1), true},
    {"DEADLINE_UNREACHABLE", absl::Seconds(1), true},
    {"UNREAD_ANSWERS", absl::Seconds(1)},
    {"LOADING", absl::Seconds(2)},
    {"NO_WORKERS", absl::Seconds(2)},
    {"WORKER_TIMEOUT", absl::Seconds(2)},
    {"WORKERS_FAIL", absl::Seconds(2)},
};
constexpr absl::Duration kShortestDrain = absl::Milliseconds(100);
constexpr absl::Duration kLongestDrain = absl::Minutes(1);

}  // namespace

absl::Duration RetryDelayFor(std::string_view reason, absl::Duration queue_drain) {
  for (const RetryRule& rule : kRetryRules) {
    if (rule.reason == reason) {
      const bool is_known = rule.uses_queue_drain && queue_drain > absl::ZeroDuration();
      const absl::Duration delay =
          is_known ? std::clamp(queue_drain, kShortestDrain, kLongestDrain) : rule.delay;
      thread_local std::minstd_rand generator{std::random_device{}()};
      return delay * std::uniform_real_distribution<double>(0.8, 1.2)(generator);
    }
  }
  return absl::ZeroDuration();
}

grpc::Status ToPublicStatus(const absl::Status& status, absl::Duration queue_drain) {
  const absl::Duration delay = RetryDelayFor(ReasonOf(status), queue_drain);
  return ToGrpcStatus(status,
                      delay > absl::ZeroDuration() ? std::make_optional(delay) : std::nullopt);
}

absl::Status CancelledByClient() {
  return Error(absl::StatusCode::kCancelled, "CLIENT", "request: cancelled by the client");
}

}  // namespace quire
