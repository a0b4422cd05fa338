#include "scheduler/loop/prefix_calls.h"

#include <optional>
#include <utility>

#include "common/base/error.h"
#include "scheduler/loop/output_router.h"

namespace quire {
namespace {

absl::Status NoRoom() {
  return Error(
      absl::StatusCode::kResourceExhausted,
      "PINNED_SHARE",
      "prefix: pinned prefixes would exceed their share of the KV cache (--max-pinned-share)");
}

absl::Status RefusalOf(PinOutcome outcome) {
  switch (outcome) {
    case PinOutcome::kAccepted:
    case PinOutcome::kAlreadyPinned:
      break;
    case PinOutcome::kDisabled:
      return Error(absl::StatusCode::kFailedPrecondition,
                   "PREFIX_CACHE_OFF",
                   "server: prefixes cannot be pinned, because prefix caching is off "
                   "(--enable-prefix-caching)");
    case PinOutcome::kNoLimits:
      return Error(
          absl::StatusCode::kUnavailable, "LOADING", "server: no worker has been ready so far");
    case PinOutcome::kTooMany:
      return Error(absl::StatusCode::kResourceExhausted,
                   "TOO_MANY_PREFIXES",
                   "server: the maximum number of prefixes is pinned; unpin one first");
    case PinOutcome::kTooShort:
      return InvalidArgument("PREFIX_TOO_SHORT", "prefix: shorter than one block of the KV cache");
    case PinOutcome::kTooLong:
      return InvalidArgument("PROMPT_TOO_LONG", "prefix: leaves no room for output");
    case PinOutcome::kExceedsShare:
      return NoRoom();
    case PinOutcome::kStarvesRequest:
      return Error(absl::StatusCode::kResourceExhausted,
                   "PINNED_CAPACITY",
                   "prefix: if it were pinned, an open request would no longer fit the KV cache");
  }
  return absl::OkStatus();
}

}  // namespace

void PrefixCalls::Pin(RecordedCore& core, PinCall call, bool has_workers) {
  if (call.waits_for_workers && !has_workers) {
    wait_for_workers_.push_back(std::move(call));
    return;
  }
  const PinResult result =
      core.PinPrefix(call.id, std::move(call.token_ids), std::move(call.cache_salt));
  const absl::Status refusal = RefusalOf(result.outcome);
  if (!refusal.ok()) {
    call.answer(refusal);
    return;
  }
  call.id = result.id;
  waiting_.push_back(std::move(call));
}

void PrefixCalls::OnWorkersReady(RecordedCore& core) {
  for (PinCall& call : std::exchange(wait_for_workers_, {})) {
    Pin(core, std::move(call), /*has_workers=*/true);
  }
}

void PrefixCalls::Unpin(RecordedCore& core, const UnpinCall& call) {
  std::erase_if(waiting_, [&call](const PinCall& waiting) {
    if (waiting.id != call.id) {
      return false;
    }
    waiting.answer(
        Error(absl::StatusCode::kAborted, "UNPINNED", "prefix: unpinned before it was computed"));
    return true;
  });
  call.answer(
      core.UnpinPrefix(call.id)
          ? absl::OkStatus()
          : Error(absl::StatusCode::kNotFound, "PREFIX", "prefix_id: no such prefix is pinned"));
}

void PrefixCalls::AnswerWaiting(const RecordedCore& core, bool has_workers) {
  std::erase_if(waiting_, [&core, has_workers](const PinCall& call) {
    const std::optional<PrefixInfo> info = core.FindPrefix(call.id);
    if (!info.has_value()) {
      call.answer(core.IsPoisonPrefix(call.id)
                      ? WorkerCrashStatus("prefix")
                      : Error(absl::StatusCode::kInternal,
                              "NON_FINITE_LOGITS",
                              "prefix: the model's logits were NaN or infinite twice"));
      return true;
    }
    if (info->state == PrefixState::kPinned) {
      call.answer(*info);
      return true;
    }
    const bool lacks_room = has_workers && info->state == PrefixState::kWaiting;
    if (lacks_room) {
      call.answer(NoRoom());
    }
    return lacks_room;
  });
}

void PrefixCalls::FailWaiting(const absl::Status& status) {
  for (const PinCall& call : std::exchange(waiting_, {})) {
    call.answer(status);
  }
}

void PrefixCalls::FailAll(const absl::Status& status) {
  FailWaiting(status);
  for (const PinCall& call : std::exchange(wait_for_workers_, {})) {
    call.answer(status);
  }
}

}  // namespace quire
