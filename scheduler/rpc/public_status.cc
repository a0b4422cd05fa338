#include "scheduler/rpc/public_status.h"

#include <optional>
#include <random>

#include "common/base/error.h"
#include "common/wire/grpc_status.h"

namespace quire {
namespace {

struct RetryRule {
  std::string_view reason;
  absl::Duration delay;
};

constexpr RetryRule kRetryRules[] = {
    {"QUEUE_FULL", absl::Seconds(1)},
    {"QUEUE_TOKENS", absl::Seconds(1)},
    {"TENANT_LIMIT", absl::Seconds(1)},
    {"LOADING", absl::Seconds(2)},
    {"NO_WORKERS", absl::Seconds(2)},
    {"WORKER_TIMEOUT", absl::Seconds(2)},
};

}  // namespace

absl::Duration RetryDelayFor(std::string_view reason) {
  for (const RetryRule& rule : kRetryRules) {
    if (rule.reason == reason) {
      thread_local std::minstd_rand generator{std::random_device{}()};
      return rule.delay * std::uniform_real_distribution<double>(0.8, 1.2)(generator);
    }
  }
  return absl::ZeroDuration();
}

grpc::Status ToPublicStatus(const absl::Status& status) {
  const absl::Duration delay = RetryDelayFor(ReasonOf(status));
  return ToGrpcStatus(status,
                      delay > absl::ZeroDuration() ? std::make_optional(delay) : std::nullopt);
}

absl::Status CancelledByClient() {
  return Error(absl::StatusCode::kCancelled, "CLIENT", "request: cancelled by the client");
}

}  // namespace quire
