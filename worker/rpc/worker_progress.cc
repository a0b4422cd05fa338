#include "worker/rpc/worker_progress.h"

#include "common/base/clock.h"
#include "common/base/random_bytes.h"

namespace quire {
namespace {

constexpr size_t kUuidBytes = 16;

// Adds 1 to the report's progress counter. Every method that notes progress calls this function.
void Count(v1::WatchReport* report) { report->set_progress(report->progress() + 1); }

}  // namespace

WorkerProgress::WorkerProgress(const KernelBackend& backend, const PeerListener* peers)
    : backend_(backend), peers_(peers), uuid_(RandomBytes(kUuidBytes)) {
  state_.report.set_worker_uuid(uuid_);
  state_.report.set_phase(v1::WORKER_PHASE_LOADING);
}

void WorkerProgress::Load(int64_t loaded_bytes, int64_t total_bytes) {
  const MutexLock lock(mutex_);
  state_.report.set_loaded_bytes(loaded_bytes);
  state_.report.set_total_bytes(total_bytes);
  Count(&state_.report);
}

void WorkerProgress::FinishLoad() {
  const MutexLock lock(mutex_);
  state_.report.set_phase(v1::WORKER_PHASE_IDLE);
  state_.report.clear_loaded_bytes();
  state_.report.clear_total_bytes();
  Count(&state_.report);
}

void WorkerProgress::BeginEpoch(int64_t pool_bytes) {
  const MutexLock lock(mutex_);
  state_.pool_bytes = pool_bytes;
  state_.report.set_phase(v1::WORKER_PHASE_BEGINNING_EPOCH);
  Count(&state_.report);
}

void WorkerProgress::EndBeginEpoch(uint64_t scheduler_incarnation,
                                   uint64_t group_epoch,
                                   uint64_t last_step_id,
                                   int64_t num_window_places) {
  const MutexLock lock(mutex_);
  state_.report.set_phase(v1::WORKER_PHASE_IDLE);
  state_.report.set_scheduler_incarnation(scheduler_incarnation);
  state_.report.set_group_epoch(group_epoch);
  state_.report.set_step_id(last_step_id);
  state_.report.set_num_window_places(num_window_places);
  Count(&state_.report);
}

void WorkerProgress::BeginStep(uint64_t step_id) {
  const MutexLock lock(mutex_);
  state_.report.set_phase(v1::WORKER_PHASE_EXECUTING);
  state_.report.set_step_id(step_id);
  Count(&state_.report);
}

void WorkerProgress::EndStep(uint64_t last_step_id, int64_t num_window_places) {
  const MutexLock lock(mutex_);
  state_.report.set_phase(v1::WORKER_PHASE_IDLE);
  if (state_.report.step_id() == last_step_id) {
    state_.report.set_num_steps(state_.report.num_steps() + 1);
  }
  state_.report.set_step_id(last_step_id);
  state_.report.set_num_window_places(num_window_places);
  Count(&state_.report);
}

void WorkerProgress::Tick() {
  const MutexLock lock(mutex_);
  Count(&state_.report);
}

void WorkerProgress::AddWaiter() {
  const MutexLock lock(mutex_);
  ++state_.num_waiters;
}

void WorkerProgress::RemoveWaiter() {
  const MutexLock lock(mutex_);
  --state_.num_waiters;
}

void WorkerProgress::AddTask() {
  const MutexLock lock(mutex_);
  ++state_.num_tasks;
}

void WorkerProgress::RemoveTask() {
  const MutexLock lock(mutex_);
  --state_.num_tasks;
}

WorkerProgress::State WorkerProgress::Read() const {
  State state;
  {
    const MutexLock lock(mutex_);
    state = state_;
    state.report.set_holder_incarnation(claim_.scheduler_incarnation());
    state.report.set_holder_silence_ms(claim_.SilenceNs(SteadyNow()) / kNanosPerMilli);
  }
  // Both counters only grow, so the sum changes whenever one of them does.
  state.report.set_progress(state.report.progress() + backend_.progress());
  if (const int32_t rank = peers_ == nullptr ? -1 : peers_->waits_for_rank(); rank >= 0) {
    state.report.set_waits_for_rank(rank);
  }
  return state;
}

absl::Status WorkerProgress::Ask(uint64_t scheduler_incarnation, uint64_t group_epoch) {
  const MutexLock lock(mutex_);
  return claim_.Ask(scheduler_incarnation, group_epoch, SteadyNow());
}

absl::Status WorkerProgress::CheckClaim(uint64_t scheduler_incarnation,
                                        uint64_t group_epoch) const {
  const MutexLock lock(mutex_);
  return claim_.Check(scheduler_incarnation, group_epoch);
}

void WorkerProgress::Hear(uint64_t scheduler_incarnation) {
  const MutexLock lock(mutex_);
  claim_.Hear(scheduler_incarnation, SteadyNow());
}

}  // namespace quire
