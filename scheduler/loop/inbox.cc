#include "scheduler/loop/inbox.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

// Tenant name under which calls to pin a prefix are counted: operators belong to no tenant.
constexpr char kOperator[] = "(operator)";

absl::Status ToStatus(TenantShares::Answer answer) {
  switch (answer) {
    case TenantShares::Answer::kFull:
      return Error(absl::StatusCode::kResourceExhausted,
                   "QUEUE_FULL",
                   "server: too many requests are arriving");
    case TenantShares::Answer::kTenantFull:
      return TenantLimitStatus();
    case TenantShares::Answer::kTaken:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RequestId> Inbox::Add(AddRequest add) {
  const MutexLock lock(mutex_);
  QUIRE_RETURN_IF_ERROR(ToStatus(shares_.Take(add.request.tenant, add.request.is_resumed, 0)));
  const RequestId id(next_id_++);
  add.request.id = id;
  queue_.PushAlways(std::move(add));
  return id;
}

absl::Status Inbox::Add(PinCall call) {
  const MutexLock lock(mutex_);
  QUIRE_RETURN_IF_ERROR(ToStatus(shares_.Take(kOperator, /*is_resumed=*/false, 0)));
  call.id = RequestId(next_id_++);
  queue_.PushAlways(std::move(call));
  return absl::OkStatus();
}

std::deque<LoopEvent> Inbox::TakeAll(absl::Duration timeout) {
  std::deque<LoopEvent> events = queue_.PopAll(timeout);
  const MutexLock lock(mutex_);
  for (const LoopEvent& event : events) {
    if (const auto* add = std::get_if<AddRequest>(&event)) {
      shares_.Release(add->request.tenant, add->request.is_resumed, {.num_requests = 1});
    } else if (std::holds_alternative<PinCall>(event)) {
      shares_.Release(kOperator, /*is_resumed=*/false, {.num_requests = 1});
    }
  }
  return events;
}

}  // namespace quire
