#include "kernels/collective/shared_ring.h"

#include <algorithm>
#include <cstring>

#include "common/base/math.h"

namespace quire {
namespace {

// Returns the distance from counter `behind` to counter `ahead`, or nullopt if the distance is
// impossible in a ring of this size.
std::optional<size_t> Distance(uint64_t behind, uint64_t ahead, size_t ring_bytes) {
  const uint64_t distance = ahead - behind;  // huge if the counters are out of order
  return distance > ring_bytes || distance % kRingLineBytes != 0 ? std::nullopt
                                                                 : std::optional<size_t>(distance);
}

// Returns the number of bytes from a place in the ring to the ring's end. `place`: a counter of
// bytes since the start.
size_t RunLength(uint64_t place, size_t ring_bytes) {
  return ring_bytes - (place & (ring_bytes - 1));
}

}  // namespace

std::optional<size_t> RingWriter::Room() const {
  // Loads and stores of counters are sequentially consistent, in one total order with the loads and
  // stores of sleeps_for (SharedChannel::Wait). In acquire-release order a wake-up could be lost.
  const auto used = Distance(counters_.num_read.load(), num_written_, ring_.size());
  return used.has_value() ? std::optional(ring_.size() - *used) : std::nullopt;
}

std::optional<size_t> RingWriter::Write(std::span<const std::byte> bytes) {
  const std::optional<size_t> room = Room();
  if (!room.has_value()) {
    return std::nullopt;
  }
  // The free room consists of whole lines, so the padding of a partial last line fits, too.
  const size_t size = std::min({bytes.size(), *room, RunLength(num_written_, ring_.size())});
  if (size > 0) {
    std::memcpy(&ring_[num_written_ & (ring_.size() - 1)], bytes.data(), size);
    num_written_ += RoundUp(size, kRingLineBytes);
    counters_.num_written.store(num_written_);
  }
  return size;
}

std::optional<size_t> RingReader::Available() const {
  return Distance(num_read_, counters_.num_written.load(), ring_.size());
}

std::optional<std::span<const std::byte>> RingReader::Peek(size_t max_bytes) const {
  const std::optional<size_t> available = Available();
  if (!available.has_value()) {
    return std::nullopt;
  }
  const size_t size = std::min({max_bytes, *available, RunLength(num_read_, ring_.size())});
  return ring_.subspan(num_read_ & (ring_.size() - 1), size);
}

void RingReader::Release(size_t num_bytes) {
  num_read_ += RoundUp(num_bytes, kRingLineBytes);
  counters_.num_read.store(num_read_);
}

}  // namespace quire
