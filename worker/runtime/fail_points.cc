#include "worker/runtime/fail_points.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr int64_t kTickMillis = 10;
constexpr int64_t kMaxMillis = int64_t{24} * 3600 * 1000;

absl::Status Mistake(absl::string_view point, absl::string_view rule) {
  return InvalidArgument("FLAG", absl::StrCat("--fail-points: ", point, ": ", rule));
}

// Parses a number in [min, limit].
template <typename T>
absl::Status ParseNumber(absl::string_view point, absl::string_view text, T min, T limit, T* out) {
  T value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < min || value > limit) {
    return Mistake(point,
                   absl::StrCat("needs a number in [", min, ", ", limit, "] (got ", text, ")"));
  }
  *out = value;
  return absl::OkStatus();
}

absl::Status ParseStep(absl::string_view point, absl::string_view text, uint64_t* step) {
  return ParseNumber<uint64_t>(point, text, 1, std::numeric_limits<uint32_t>::max(), step);
}

absl::Status ParseToken(absl::string_view point,
                        absl::string_view text,
                        std::optional<TokenId>* token_id) {
  return ParseNumber<TokenId>(
      point, text, 0, std::numeric_limits<TokenId>::max(), &token_id->emplace());
}

absl::Status ParseMillis(absl::string_view point, absl::string_view text, int64_t* millis) {
  return ParseNumber<int64_t>(point, text, 1, kMaxMillis, millis);
}

absl::Status ParseSwitch(absl::string_view point, absl::string_view text, bool* is_on) {
  *is_on = true;
  return text.empty() ? absl::OkStatus() : Mistake(point, "takes no value");
}

// Parses one fail-point: "NAME=VALUE", or "NAME" alone, for which `value` is "".
absl::Status ParsePoint(absl::string_view name, absl::string_view value, FailPointList* list) {
  if (name == "stick-at-step") {
    return ParseStep(name, value, &list->stick_at_step);
  }
  if (name == "stick-when-idle") {
    return ParseStep(name, value, &list->stick_when_idle);
  }
  if (name == "slow-step") {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(value, absl::MaxSplits(':', 1));
    QUIRE_RETURN_IF_ERROR(ParseStep(name, parts.first, &list->slow_step));
    return ParseMillis(name, parts.second, &list->slow_step_millis);
  }
  if (name == "crash-on-token") {
    return ParseToken(name, value, &list->crash_on_token);
  }
  if (name == "stick-on-token") {
    return ParseToken(name, value, &list->stick_on_token);
  }
  if (name == "crash-before-step") {
    return ParseStep(name, value, &list->crash_before_step);
  }
  if (name == "crash-after-step") {
    return ParseStep(name, value, &list->crash_after_step);
  }
  if (name == "wrong-digests") {
    return ParseSwitch(name, value, &list->has_wrong_digests);
  }
  if (name == "stick-in-load") {
    return ParseSwitch(name, value, &list->stick_in_load);
  }
  if (name == "slow-load") {
    return ParseMillis(name, value, &list->slow_load_millis);
  }
  return Mistake(name, "unknown fail-point");
}

void StandStill() {
  LogWarning("fail-point: hangs forever");
  for (;;) {
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

void BeSlow(int64_t millis, const std::function<void()>& tick) {
  for (int64_t left = millis; left > 0; left -= kTickMillis) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(left, kTickMillis)));
    tick();
  }
}

void Crash() {
  LogWarning("fail-point: crashes");
  std::abort();
}

}  // namespace

absl::StatusOr<FailPointList> ParseFailPoints(std::string_view text) {
  FailPointList list;
  if (text.empty()) {
    return list;
  }
  std::set<absl::string_view> names;
  for (absl::string_view point : absl::StrSplit(ToAbsl(text), ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(point, absl::MaxSplits('=', 1));
    if (!names.insert(parts.first).second) {
      return Mistake(parts.first, "is given twice");
    }
    QUIRE_RETURN_IF_ERROR(ParsePoint(parts.first, parts.second, &list));
  }
  return list;
}

FailPoints::FailPoints(const FailPointList& list, std::function<void()> tick)
    : list_(list), tick_(std::move(tick)) {}

void FailPoints::InLoad(const std::function<void()>& tick) const {
  if (list_.stick_in_load) {
    StandStill();
  }
  BeSlow(list_.slow_load_millis, tick);
}

void FailPoints::BeforeStep(std::span<const TokenId> token_ids) {
  ++num_steps_;
  const auto has = [token_ids](const std::optional<TokenId>& token_id) {
    return token_id.has_value() &&
           std::find(token_ids.begin(), token_ids.end(), *token_id) != token_ids.end();
  };
  if (has(list_.crash_on_token) || num_steps_ == list_.crash_before_step) {
    Crash();
  }
  if (has(list_.stick_on_token) || num_steps_ == list_.stick_at_step) {
    StandStill();
  }
  if (num_steps_ == list_.slow_step) {
    BeSlow(list_.slow_step_millis, tick_);
  }
}

void FailPoints::AfterStep(uint64_t* plan_digest) const {
  *plan_digest += list_.has_wrong_digests ? 1 : 0;
  if (num_steps_ == list_.crash_after_step) {
    Crash();
  }
}

void FailPoints::WhenIdle() const {
  if (num_steps_ == list_.stick_when_idle) {
    StandStill();
  }
}

}  // namespace quire
