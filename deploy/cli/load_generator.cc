#include "deploy/cli/load_generator.h"

#include <cmath>
#include <random>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quire {
namespace {

// Counts running requests. Enter waits until fewer than `limit` requests run (0: no limit), and
// counts one more. AwaitEmpty waits until no request runs.
class Gate {
 public:
  explicit Gate(int32_t limit) : limit_(limit) {}

  void Enter() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Gate::HasRoom));
    ++running_;
  }
  void Leave() {
    absl::MutexLock lock(&mutex_);
    --running_;
  }
  void AwaitEmpty() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Gate::IsEmpty));
  }

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return limit_ == 0 || running_ < limit_;
  }
  bool IsEmpty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; }

  const int32_t limit_;
  absl::Mutex mutex_;
  int32_t running_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::vector<RequestRecord> RunLoad(LoadBackend& backend,
                                   size_t num_requests,
                                   const LoadOptions& options) {
  std::vector<RequestRecord> records(num_requests);
  Gate gate(options.max_concurrency);
  std::mt19937_64 random(options.seed);
  const bool open_loop = std::isfinite(options.requests_per_second);
  std::gamma_distribution<double> gap_seconds(
      options.burstiness,
      open_loop ? 1.0 / (options.requests_per_second * options.burstiness) : 1.0);
  absl::Time next = absl::Now();
  for (size_t i = 0; i < num_requests; ++i) {
    if (open_loop) {
      absl::SleepFor(next - absl::Now());
      next += absl::Seconds(gap_seconds(random));
    }
    gate.Enter();
    backend.Start(i, records[i], [&gate] { gate.Leave(); });
  }
  gate.AwaitEmpty();
  return records;
}

}  // namespace quire
