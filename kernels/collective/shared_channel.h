// SharedChannel is the memory that two ranks of one host share. It has a ring of bytes for each
// direction and, for each side, a futex word on which the side sleeps.
//
// The memory is an unnamed file. One side creates the file and seals its size. The other side gets
// the file over the socket (fd_passing.h), and maps it only if the size is right and sealed. So
// neither side can truncate the mapping of the other side. The memory does not show that a side has
// died. So the caller must check the socket between the ranks, at least each time Wait returns
// kNothing.
//
// Thread safety: one caller at a time; Close, is_closed and is_closed_by_other from any thread.
// Cost:          two rings of kSharedRingBytes, allocated at creation. Send and Release make no
//                system call unless the other side sleeps. Wait spins for 1 ms at most.
// Source:        Franke, Russell and Kirkwood 2002 (futex); memfd_create(2).
#ifndef QUIRE_KERNELS_COLLECTIVE_SHARED_CHANNEL_H_
#define QUIRE_KERNELS_COLLECTIVE_SHARED_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/base/file_descriptor.h"
#include "kernels/collective/shared_ring.h"

namespace quire {

inline constexpr size_t kSharedRingBytes = size_t{512} << 10;

class SharedChannel {
 public:
  enum class Side : uint8_t { kCreator = 0, kOther = 1 };
  enum class Waited : uint8_t { kSomething, kNothing };

  // Creates the memory of a channel. The result is not open if the system refuses the memory.
  static FileDescriptor CreateMemory();
  // Returns null if the file is not a channel's memory. `spins`: whether Wait spins before it
  // sleeps; pass true only if each rank has a CPU core of its own. After a spin in vain, the next
  // waits do not spin, since other threads may need the core.
  static std::unique_ptr<SharedChannel> Map(const FileDescriptor& memory, Side side, bool spins);
  ~SharedChannel();
  SharedChannel(const SharedChannel&) = delete;
  SharedChannel& operator=(const SharedChannel&) = delete;

  // Calls RingWriter::Write. Wakes the other side if it waits for data.
  std::optional<size_t> Send(std::span<const std::byte> bytes);
  // Calls RingReader::Peek.
  std::optional<std::span<const std::byte>> Peek(size_t max_bytes) const;
  // Calls RingReader::Release. Wakes the other side if it waits for room.
  void Release(size_t num_bytes);

  // Waits until there is the wanted data or room, or a side has closed. Returns kNothing if a sleep
  // of 2 ms ends without any of these. REQUIRES: wants_data || wants_room.
  Waited Wait(bool wants_data, bool wants_room);

  // Closes this side for good and wakes both sides.
  void Close();
  bool is_closed() const;
  bool is_closed_by_other() const;

 private:
  struct Memory;

  SharedChannel(Memory* memory, Side side, bool spins);
  bool IsThere(bool wants_data, bool wants_room) const;
  bool Spin(bool wants_data, bool wants_room);
  void Wake(size_t side, uint32_t reason);

  Memory* const memory_;
  const size_t self_;
  const bool spins_;
  int32_t num_waits_without_spin_ = 0;  // how many of the next waits do not spin
  // The value that num_waits_without_spin_ gets after the next spin in vain.
  int32_t num_sleeps_after_spin_ = 1;
  RingWriter out_;
  RingReader in_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_SHARED_CHANNEL_H_
