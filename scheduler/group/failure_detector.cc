#include "scheduler/group/failure_detector.h"

#include <algorithm>
#include <cstddef>

namespace quire {
namespace {

// Bounds the factor by which a slow process's step timeout grows. With this factor and the default
// timeout of 5 s, a rank may stand still in a step for 320 s.
constexpr int64_t kMaxSlowness = 64;

}  // namespace

void FailureDetector::OnDial(Instant now) {
  heard_at_ = now;
  report_ = {};
}

void FailureDetector::OnHello(const std::string& uuid) {
  if (uuid != slow_uuid_) {
    slowness_ = 1;
  }
}

bool FailureDetector::OnReport(const WorkerReport& report, Instant now) {
  const bool moved =
      report.progress != report_.progress || report.waits_for_rank != report_.waits_for_rank;
  heard_at_ = now;
  seen_at_ = now;
  moved_at_ = moved ? now : moved_at_;
  report_ = report;
  return moved;
}

bool FailureDetector::NoteIdle(bool is_asked, Instant now) {
  if (!is_asked || report_.phase != WorkerPhase::kIdle) {
    idle_at_.reset();
  } else if (!idle_at_.has_value()) {
    idle_at_ = now;
  }
  return idle_at_.has_value();
}

void FailureDetector::OnFenced(const std::string& uuid) {
  slow_uuid_ = uuid;
  slowness_ = std::min(2 * slowness_, kMaxSlowness);
}

void FailureDetector::RestartTimeouts(Instant now) {
  heard_at_ = now;
  seen_at_ = now;
  moved_at_ = now;
  idle_at_.reset();
  // While report_.uuid is empty, the group does not ask for the worker. So it waits for a new
  // report, which names the worker's holder (the newest scheduler that asked for the worker).
  report_.uuid.clear();
}

bool FailureDetector::IsIdle(int64_t duration_ns, Instant now) const {
  return idle_at_.has_value() && now - *idle_at_ >= duration_ns;
}

bool FailureDetector::StandsStill(int64_t step_timeout_ns) const {
  // Time without progress is measured up to the last report, not up to now, else a network cut
  // would count as standing still.
  return report_.phase != WorkerPhase::kIdle &&
         heard_at_ - moved_at_ >= slowness_ * step_timeout_ns;
}

bool WaitsForAnother(std::span<const std::optional<int32_t>> waits_for, int32_t rank) {
  int32_t last = rank;
  for (size_t i = 0; i < waits_for.size(); ++i) {
    const std::optional<int32_t> next = waits_for[static_cast<size_t>(last)];
    if (!next.has_value()) {
      return last != rank;
    }
    last = *next;
    if (last == rank) {
      return false;
    }
  }
  return true;  // the rank waits for a circle of ranks that it is not part of
}

}  // namespace quire
