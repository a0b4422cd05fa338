// WeightScrubber reads the weights in main memory again and again while steps run. If it finds a
// change, the process ends. The supervisor then starts a new process, which reads the weights from
// the files.
//
// In memory without error correction a bit flips now and then. No other check would find a flipped
// bit in a rank's weights: sums over the ranks spread the error to all ranks alike. All answers
// after the flip could be wrong.
//
// Thread safety: one caller at a time, except where a comment says otherwise.
// Cost:          kBytesPerSecond of memory bandwidth and about 1 % of a core, at the lowest
//                priority. A flip is found after at most (bytes of weights) / kBytesPerSecond: 16 s
//                for 0.5 GB.
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

// MemorySums detects changes in memory by checksums of its pieces. Not thread-safe.
class MemorySums {
 public:
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  // The memory must outlive the object.
  explicit MemorySums(std::span<const std::span<const std::byte>> memory);

  size_t num_pieces() const { return pieces_.size(); }
  // Bytes of the piece that CheckNext reads next. REQUIRES: num_pieces() > 0
  size_t next_bytes() const { return pieces_[next_].size(); }

  // Computes the checksum of the next piece; the first piece follows the last one. Returns false if
  // the checksum differs from the first checksum of the same piece. REQUIRES: num_pieces() > 0
  bool CheckNext();

 private:
  std::vector<std::span<const std::byte>> pieces_;
  std::vector<uint64_t> sums_;  // first checksum of each piece read so far
  size_t next_ = 0;
};

class WeightScrubber {
 public:
  static constexpr int64_t kBytesPerSecond = int64_t{32} << 20;

  // The memory must outlive the object. on_change is called at most once, on the scrubber's thread.
  WeightScrubber(std::span<const std::span<const std::byte>> memory,
                 std::function<void()> on_change);
  // Stops the thread.
  ~WeightScrubber();
  WeightScrubber(const WeightScrubber&) = delete;
  WeightScrubber& operator=(const WeightScrubber&) = delete;

  bool has_memory() const { return sums_.num_pieces() > 0; }
  // Bytes read so far. Any thread.
  int64_t num_bytes() const { return num_bytes_.load(std::memory_order_relaxed); }
  // Complete passes over the memory; the first pass only records checksums. Any thread.
  int64_t num_passes() const { return num_passes_.load(std::memory_order_relaxed); }

 private:
  void Loop();
  // Waits for `time`. Returns true if the thread must stop.
  bool WaitOrStop(std::chrono::milliseconds time);

  MemorySums sums_;  // used by thread_ only
  const std::function<void()> on_change_;
  std::atomic<int64_t> num_bytes_{0};
  std::atomic<int64_t> num_passes_{0};

  Mutex mutex_;
  CondVar stopping_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last member: the thread uses the members above
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_WEIGHT_SCRUBBER_H_
