// WeightScrubber reads the weights in main memory again and again, beside the steps, and ends the
// process when one has changed. Memory without error correction loses a bit now and then. In a
// rank's own weights nothing else would find it: the ranks add up what each of them has, wrong
// numbers reach all alike, and every answer from then on is another one.
//
// A process that ends is started again and reads its weights from the files.
//
// Thread safety: one caller at a time, except where it says otherwise.
// Cost:          kBytesPerSecond of memory bandwidth and about 1 % of a core, at the lowest
//                priority. A bit is found when its place comes by, after at most
//                size / kBytesPerSecond: 16 s for 0.5 GB of weights.
#ifndef QUIRE_WORKER_RUNTIME_WEIGHT_SCRUBBER_H_
#define QUIRE_WORKER_RUNTIME_WEIGHT_SCRUBBER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"

#include "common/base/mutex.h"

namespace quire {

// What is compared: sums of pieces. Not thread-safe.
class MemorySums {
 public:
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  // The memory must outlive the object.
  explicit MemorySums(std::span<const std::span<const std::byte>> memory);

  size_t num_pieces() const { return pieces_.size(); }
  // Of the piece that CheckNext reads next. REQUIRES: num_pieces() > 0
  size_t next_bytes() const { return pieces_[next_].size(); }

  // Adds up the next piece, the first one after the last. False: its sum is another one than the
  // first time. REQUIRES: num_pieces() > 0
  bool CheckNext();

 private:
  std::vector<std::span<const std::byte>> pieces_;
  std::vector<uint64_t> sums_;  // of those that were read once
  size_t next_ = 0;
};

class WeightScrubber {
 public:
  static constexpr int64_t kBytesPerSecond = int64_t{32} << 20;

  // The memory must outlive the object. on_change is called once, on a thread of the scrubber.
  WeightScrubber(std::span<const std::span<const std::byte>> memory,
                 std::function<void()> on_change);
  // Stops.
  ~WeightScrubber();
  WeightScrubber(const WeightScrubber&) = delete;
  WeightScrubber& operator=(const WeightScrubber&) = delete;

  bool has_memory() const { return sums_.num_pieces() > 0; }
  // Bytes read so far, and how often all of the memory was. The first time nothing is compared. Any
  // thread.
  int64_t num_bytes() const { return num_bytes_.load(std::memory_order_relaxed); }
  int64_t num_passes() const { return num_passes_.load(std::memory_order_relaxed); }

 private:
  void Loop();
  // Waits for so long. True: it is to stop.
  bool WaitOrStop(std::chrono::milliseconds time);

  MemorySums sums_;  // of the thread
  const std::function<void()> on_change_;
  std::atomic<int64_t> num_bytes_{0};
  std::atomic<int64_t> num_passes_{0};

  Mutex mutex_;
  CondVar stopping_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses all above
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_WEIGHT_SCRUBBER_H_
