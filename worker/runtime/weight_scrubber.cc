#include "worker/runtime/weight_scrubber.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "worker/model/weights_sum.h"

#include <sys/resource.h>

namespace quire {
namespace {

constexpr std::chrono::milliseconds kNoTime(0);
constexpr std::chrono::milliseconds kInterval(1000 * int64_t{MemorySums::kPieceBytes} /
                                              WeightScrubber::kBytesPerSecond);

}  // namespace

MemorySums::MemorySums(std::span<const std::span<const std::byte>> memory) {
  for (std::span<const std::byte> left : memory) {
    while (!left.empty()) {
      const size_t size = std::min(left.size(), kPieceBytes);
      pieces_.push_back(left.first(size));
      left = left.subspan(size);
    }
  }
  sums_.reserve(pieces_.size());
}

bool MemorySums::CheckNext() {
  static const WeightsSum& sum = *new WeightsSum("memory");
  const size_t piece = next_;
  next_ = (next_ + 1) % pieces_.size();
  const uint64_t now = sum.Of(0, pieces_[piece]);
  if (piece == sums_.size()) {
    sums_.push_back(now);
  }
  return sums_[piece] == now;
}

WeightScrubber::WeightScrubber(std::span<const std::span<const std::byte>> memory,
                               std::function<void()> on_change)
    : sums_(memory), on_change_(std::move(on_change)), thread_([this] { Loop(); }) {}

WeightScrubber::~WeightScrubber() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  stopping_.NotifyAll();
  thread_.join();
}

void WeightScrubber::Loop() {
  // Lowers the priority of this thread only. A failure is harmless: the scrubber needs little CPU.
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19));
  for (size_t num_read = 0; sums_.num_pieces() > 0; ++num_read) {
    // The first pass has no pauses, because a piece is protected only after its first checksum.
    if (WaitOrStop(num_read < sums_.num_pieces() ? kNoTime : kInterval)) {
      return;
    }
    const auto num_bytes = static_cast<int64_t>(sums_.next_bytes());
    if (!sums_.CheckNext()) {
      on_change_();
      return;
    }
    num_bytes_.fetch_add(num_bytes, std::memory_order_relaxed);
    if ((num_read + 1) % sums_.num_pieces() == 0) {
      num_passes_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

bool WeightScrubber::WaitOrStop(std::chrono::milliseconds time) {
  const Instant deadline = SteadyNow() + time.count() * kNanosPerMilli;
  const MutexLock lock(mutex_);
  while (!is_stopping_ && stopping_.WaitUntil(mutex_, deadline)) {
  }
  return is_stopping_;
}

}  // namespace quire
