// RingWriter and RingReader are the two ends of a ring of bytes in memory that two processes share:
// one writes, the other one reads.
//
// What the other process did is not trusted: each end keeps its own place by itself and takes from
// the shared memory only how far the other one is. A counter that cannot be true is reported, and
// nothing outside the ring is ever touched.
//
// Messages begin at multiples of kRingLineBytes, so that numbers in them are aligned: a piece that
// does not fill its last line is taken for the end of a message, and the rest of the line is
// passed over at both ends. So the reader asks for messages of the sizes that were written.
//
// Thread safety: one thread an end.
// Source:        Lamport 1983, "Specifying concurrent program modules": one reader, one writer.
#ifndef QUIRE_KERNELS_COLLECTIVE_SHARED_RING_H_
#define QUIRE_KERNELS_COLLECTIVE_SHARED_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace quire {

inline constexpr size_t kRingLineBytes = 64;

// In the shared memory. Bytes since the beginning; multiples of kRingLineBytes.
struct RingCounters {
  alignas(kRingLineBytes) std::atomic<uint64_t> num_written{0};
  alignas(kRingLineBytes) std::atomic<uint64_t> num_read{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share no locks");

class RingWriter {
 public:
  // REQUIRES: the size of `ring` is a power of two, kRingLineBytes or more; it begins at a multiple
  // of kRingLineBytes.
  RingWriter(RingCounters& counters, std::span<std::byte> ring)
      : counters_(counters), ring_(ring) {}

  // Free bytes; none: the reader's counter cannot be true.
  std::optional<size_t> Room() const;
  // Copies as much of `bytes` as there is room for in one piece: whole lines, or all. Returns how
  // much; none: as Room.
  std::optional<size_t> Write(std::span<const std::byte> bytes);

 private:
  RingCounters& counters_;
  std::span<std::byte> ring_;
  uint64_t num_written_ = 0;
};

class RingReader {
 public:
  // REQUIRES: as RingWriter.
  RingReader(RingCounters& counters, std::span<const std::byte> ring)
      : counters_(counters), ring_(ring) {}

  // Bytes that have come; none: the writer's counter cannot be true.
  std::optional<size_t> Available() const;
  // At most `max_bytes` of what has come, in one piece, which stays until Release. None: as
  // Available.
  std::optional<std::span<const std::byte>> Peek(size_t max_bytes) const;
  // Gives back the whole lines of the first `num_bytes` of what Peek returned, and with
  // them the rest of the last one.
  void Release(size_t num_bytes);

 private:
  RingCounters& counters_;
  std::span<const std::byte> ring_;
  uint64_t num_read_ = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_SHARED_RING_H_
