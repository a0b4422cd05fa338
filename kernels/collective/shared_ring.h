// RingWriter and RingReader are the two ends of a byte ring in memory that two processes share.
//
// The other process is not trusted: each end keeps its own position in private memory and reads
// only the other end's counter. If an end reads an impossible counter, it reports this to its
// caller, and touches no byte outside the ring.
//
// Messages begin at multiples of kRingLineBytes, so that the numbers in a message are aligned.
// Messages are written and read in pieces of whole lines of kRingLineBytes. Only the last line of a
// message may be partly filled; writer and reader both skip the rest of that line. So the reader
// must know the size of each message.
//
// Thread safety: one thread per end.
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

// Counters in the shared memory: bytes since the start, always multiples of kRingLineBytes.
struct RingCounters {
  alignas(kRingLineBytes) std::atomic<uint64_t> num_written{0};
  alignas(kRingLineBytes) std::atomic<uint64_t> num_read{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share no locks");

class RingWriter {
 public:
  // REQUIRES: the size of `ring` is a power of two, kRingLineBytes or more; `ring` begins at a
  // multiple of kRingLineBytes.
  RingWriter(RingCounters& counters, std::span<std::byte> ring)
      : counters_(counters), ring_(ring) {}

  // Returns the number of free bytes, or nullopt if the reader's counter is impossible.
  std::optional<size_t> Room() const;
  // Copies as much of `bytes` as fits contiguously: all of `bytes`, or whole lines. Returns the
  // number of bytes copied, or nullopt if the reader's counter is impossible.
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

  // Returns the number of bytes that can be read, or nullopt if the writer's counter is impossible.
  std::optional<size_t> Available() const;
  // Returns at most `max_bytes` contiguous bytes, valid until Release, or nullopt if the writer's
  // counter is impossible.
  std::optional<std::span<const std::byte>> Peek(size_t max_bytes) const;
  // Frees the lines that hold the first `num_bytes` bytes that Peek returned.
  void Release(size_t num_bytes);

 private:
  RingCounters& counters_;
  std::span<const std::byte> ring_;
  uint64_t num_read_ = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_SHARED_RING_H_
