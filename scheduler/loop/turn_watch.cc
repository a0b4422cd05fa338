#include "scheduler/loop/turn_watch.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/base/log.h"

namespace quire {
namespace {

constexpr std::string_view kFirstDuty = "begin";

std::string Millis(int64_t nanos) { return absl::StrCat(nanos / kNanosPerMilli); }

}  // namespace

void TurnWatch::Begin() {
  began_at_ = clock_();
  if (!reader_.has_value()) {
    reader_.emplace();
  }
  if (!read_at_.has_value() || began_at_ - *read_at_ >= kReadIntervalNs) {
    read_at_ = began_at_;
    times_before_ = reader_->Read();
  }
  duty_times_.clear();
  duty_ = kFirstDuty;
  duty_began_at_ = began_at_;
}

void TurnWatch::Enter(std::string_view duty) {
  if (duty != duty_) {
    CloseDuty(clock_());
    duty_ = duty;
  }
}

int64_t TurnWatch::End() {
  const Instant now = clock_();
  CloseDuty(now);
  const int64_t turn_ns = now - began_at_;
  if (turn_ns > kSlowTurnNs) {
    LogSlowTurn(turn_ns);
  }
  return turn_ns;
}

void TurnWatch::CloseDuty(Instant now) {
  auto time = std::ranges::find(duty_times_, duty_, &DutyTime::duty);
  if (time == duty_times_.end()) {
    time = duty_times_.insert(time, {.duty = duty_});
  }
  time->nanos += now - duty_began_at_;
  duty_began_at_ = now;
}

void TurnWatch::LogSlowTurn(int64_t turn_ns) const {
  const ThreadTimes times = reader_->Read();
  std::string cpu_wait_ms = "unknown";
  if (times.cpu_wait_ns.has_value() && times_before_.cpu_wait_ns.has_value()) {
    cpu_wait_ms = Millis(*times.cpu_wait_ns - *times_before_.cpu_wait_ns);
  }
  const auto longest = std::ranges::max_element(duty_times_, {}, &DutyTime::nanos);
  LogWarning("the scheduling loop was slow",
             {{"turn_ms", Millis(turn_ns)},
              {"cpu_ms", Millis(times.cpu_ns - times_before_.cpu_ns)},
              {"cpu_wait_ms", cpu_wait_ms},
              {"longest_duty", std::string(longest->duty)},
              {"longest_duty_ms", Millis(longest->nanos)}});
}

}  // namespace quire
