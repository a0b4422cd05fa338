#include "kernels/collective/shared_channel.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>

#include "common/base/clock.h"
#include "common/base/cpu_pause.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

namespace quire {
namespace {

// Upper bound on a spin (a wait without sleep). If each rank has a core, few waits for another rank
// exceed this bound, and most waits are shorter than the time to go to sleep and wake up.
constexpr int64_t kSpinNanos = kNanosPerMilli;
// Upper bound on the successive waits that sleep without a spin. A spin in vain suggests that the
// other rank needs this core. So after the first spin in vain, 1 wait sleeps without a spin. After
// the second spin in vain, the next 2 waits do, then 4, 8, ...
constexpr int32_t kMaxSleepsAfterSpin = 64;
// Upper bound on a sleep. After a sleep the caller checks whether the other process lives.
constexpr int64_t kLookNanos = 2 * kNanosPerMilli;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Bits of the futex word sleeps_for: reasons to wake the sleeping side.
constexpr uint32_t kData = 1;
constexpr uint32_t kRoom = 2;

// Sleeps on a futex, because std::atomic::wait works only within one process.
void SleepWhile(const std::atomic<uint32_t>& word, uint32_t value, int64_t at_most_ns) {
  const timespec at_most = {.tv_sec = 0, .tv_nsec = at_most_ns};
  static_cast<void>(::syscall(SYS_futex, &word, FUTEX_WAIT, value, &at_most, nullptr, 0));
}

void WakeSleeper(const std::atomic<uint32_t>& word) {
  static_cast<void>(::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0));
}

}  // namespace

// Layout of the shared file, which starts as zeros. Arrays are indexed by Side.
struct SharedChannel::Memory {
  struct OfSide {
    alignas(kRingLineBytes) std::atomic<uint32_t> sleeps_for{0};  // 0: the side is awake
    std::atomic<uint32_t> is_closed{0};
  };

  std::array<OfSide, 2> sides;
  std::array<RingCounters, 2> counters;  // counters of the ring that the side writes
  alignas(kRingLineBytes) std::array<std::array<std::byte, kSharedRingBytes>, 2> rings;
};

FileDescriptor SharedChannel::CreateMemory() {
  FileDescriptor memory(::memfd_create("quire-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Allocates now, else a lack of memory would raise SIGBUS in the middle of a step.
  if (!memory.is_open() || ::posix_fallocate(memory.fd(), 0, sizeof(Memory)) != 0 ||
      ::fcntl(memory.fd(), F_ADD_SEALS, kSeals) != 0) {
    memory.Close();
  }
  return memory;
}

std::unique_ptr<SharedChannel> SharedChannel::Map(const FileDescriptor& memory,
                                                  Side side,
                                                  bool spins) {
  struct stat file = {};
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  if (::fstat(memory.fd(), &file) != 0 || file.st_size != sizeof(Memory) ||
      (::fcntl(memory.fd(), F_GET_SEALS) & kNeeded) != kNeeded) {
    return nullptr;
  }
  void* mapped =
      ::mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  return std::unique_ptr<SharedChannel>(
      new SharedChannel(static_cast<Memory*>(mapped), side, spins));
}

SharedChannel::SharedChannel(Memory* memory, Side side, bool spins)
    : memory_(memory),
      self_(static_cast<size_t>(side)),
      spins_(spins),
      out_(memory->counters[self_], memory->rings[self_]),
      in_(memory->counters[1 - self_], memory->rings[1 - self_]) {}

SharedChannel::~SharedChannel() {
  Close();
  ::munmap(memory_, sizeof(Memory));
}

std::optional<size_t> SharedChannel::Send(std::span<const std::byte> bytes) {
  const std::optional<size_t> sent = out_.Write(bytes);
  Wake(1 - self_, kData);
  return sent;
}

std::optional<std::span<const std::byte>> SharedChannel::Peek(size_t max_bytes) const {
  return in_.Peek(max_bytes);
}

void SharedChannel::Release(size_t num_bytes) {
  in_.Release(num_bytes);
  Wake(1 - self_, kRoom);
}

SharedChannel::Waited SharedChannel::Wait(bool wants_data, bool wants_room) {
  if (spins_ && Spin(wants_data, wants_room)) {
    return Waited::kSomething;
  }
  // All loads and stores of sleeps_for and of the rings' counters have one total order (seq_cst).
  // So either this side sees the other side's latest change, or the other side sees that this side
  // sleeps, and wakes this side.
  std::atomic<uint32_t>& word = memory_->sides[self_].sleeps_for;
  const uint32_t reasons = (wants_data ? kData : 0) | (wants_room ? kRoom : 0);
  word.store(reasons);
  if (!IsThere(wants_data, wants_room)) {
    SleepWhile(word, reasons, kLookNanos);
  }
  word.store(0);
  return IsThere(wants_data, wants_room) ? Waited::kSomething : Waited::kNothing;
}

bool SharedChannel::Spin(bool wants_data, bool wants_room) {
  if (num_waits_without_spin_ > 0) {
    --num_waits_without_spin_;
    return false;
  }
  constexpr int kPausesPerClockRead = 16;
  const Instant end = SteadyNow() + kSpinNanos;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (IsThere(wants_data, wants_room)) {
        num_sleeps_after_spin_ = 1;
        return true;
      }
      CpuPause();
    }
  } while (SteadyNow() < end);
  num_waits_without_spin_ = num_sleeps_after_spin_;
  num_sleeps_after_spin_ = std::min(2 * num_sleeps_after_spin_, kMaxSleepsAfterSpin);
  return false;
}

void SharedChannel::Close() {
  memory_->sides[self_].is_closed.store(1);
  for (size_t side = 0; side < memory_->sides.size(); ++side) {
    Wake(side, kData | kRoom);
  }
}

bool SharedChannel::is_closed() const { return memory_->sides[self_].is_closed.load() != 0; }

bool SharedChannel::is_closed_by_other() const {
  return memory_->sides[1 - self_].is_closed.load() != 0;
}

// Returns whether Wait must end. A counter with an impossible value also ends Wait, so that the
// caller reports it.
bool SharedChannel::IsThere(bool wants_data, bool wants_room) const {
  return (wants_data && in_.Available() != size_t{0}) || (wants_room && out_.Room() != size_t{0}) ||
         is_closed() || is_closed_by_other();
}

void SharedChannel::Wake(size_t side, uint32_t reason) {
  std::atomic<uint32_t>& word = memory_->sides[side].sleeps_for;
  if ((word.load() & reason) != 0 && word.exchange(0) != 0) {
    WakeSleeper(word);
  }
}

}  // namespace quire
