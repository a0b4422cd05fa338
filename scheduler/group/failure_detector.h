// FailureDetector tells from a rank's reports whether the rank is silent, is idle although a call
// or step is unanswered, or stands still in a step. WorkerGroup decides what follows.
//
// WorkerReport::progress counts only finished work. A rank that begins or ends a wait for another
// rank finishes no work by that, but counts as moving.
//
// If a worker that was fenced (given up) for standing still returns as the same process, it was
// slow, not stuck. Its step timeout is doubled, else a slow machine would be fenced for ever.
//
// Thread safety: not thread-safe; one for each rank, owned by WorkerGroup.
#ifndef QUIRE_SCHEDULER_GROUP_FAILURE_DETECTOR_H_
#define QUIRE_SCHEDULER_GROUP_FAILURE_DETECTOR_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/clock.h"
#include "scheduler/group/worker_hello.h"

namespace quire {

class FailureDetector {
 public:
  // Called when the rank is dialed. Forgets the report of the previous link.
  void OnDial(Instant now);
  // Called when a process answers the handshake. Restores the usual step timeout, unless this
  // process is the one that was fenced last.
  void OnHello(const std::string& uuid);
  // Returns true if `progress` or `waits_for_rank` has changed since the last report.
  bool OnReport(const WorkerReport& report, Instant now);
  // Called after each report. is_asked: the rank has not answered a call or a step. Returns true if
  // is_asked and the rank reports that it is idle.
  bool NoteIdle(bool is_asked, Instant now);
  // Called when the rank gets a call or step, or has answered one. IsIdle then counts only reports
  // that come later.
  void ForgetIdle() { idle_at_.reset(); }
  // Called when the rank gets a step, and when another rank for which this rank waited has answered
  // the step.
  void OnMoved(Instant now) { moved_at_ = now; }
  // Called when the rank's process, named by uuid, is fenced (given up) for standing still.
  void OnFenced(const std::string& uuid);
  // Restarts the timeouts after the scheduler process stood still for a while. In that time the
  // scheduler read no reports, and workers may have closed connections because the scheduler was
  // silent. Neither is the workers' fault.
  void RestartTimeouts(Instant now);

  // Returns true if no report has come over the present link for duration_ns.
  bool IsSilent(int64_t duration_ns, Instant now) const { return now - heard_at_ >= duration_ns; }
  // Returns true if the rank has reported idle for duration_ns although a call or step is
  // unanswered.
  bool IsIdle(int64_t duration_ns, Instant now) const;
  // Returns true if the rank is not idle, and its reports show no progress in a step for
  // step_timeout_ns. A process that was fenced for standing still gets a multiple of this time.
  // REQUIRES: the rank has not answered the step.
  bool StandsStill(int64_t step_timeout_ns) const;

  // Time of the last report over any link, or of the last RestartTimeouts; 0: neither.
  Instant seen_at() const { return seen_at_; }
  // The last report over the present link; empty before the first one.
  const WorkerReport& report() const { return report_; }

 private:
  WorkerReport report_;
  Instant heard_at_ = 0;  // time of the last report, dial or RestartTimeouts
  Instant seen_at_ = 0;
  Instant moved_at_ = 0;  // time of the last movement
  // Time of the first of the latest reports that all said that the rank is idle, although a call or
  // step is unanswered. nullopt: the last report was different, or came before ForgetIdle.
  std::optional<Instant> idle_at_;
  std::string slow_uuid_;  // last process fenced for standing still
  int64_t slowness_ = 1;   // multiplies the step timeout
};

// Returns true if the rank waits, directly or through other ranks, for a rank that causes the
// delay. Returns false if the rank waits for no other rank. Returns false also if the rank is part
// of a circle of ranks that wait for each other: then the network between these ranks is cut.
// waits_for: for each rank, the rank that it waits for; nullopt: none.
bool WaitsForAnother(std::span<const std::optional<int32_t>> waits_for, int32_t rank);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_FAILURE_DETECTOR_H_
