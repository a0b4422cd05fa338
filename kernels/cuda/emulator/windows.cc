// The emulated windows of windows.h. The pool is one mapping of a whole memory file. A place, a
// range of addresses for one block, maps one block of the same file.
#include "kernels/cuda/windows.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/memory.h"
#include "kernels/cuda/emulator/places.h"
#include "kernels/cuda/emulator/streams.h"

#include <sys/mman.h>

namespace quire::gpu {
namespace emulator {
namespace {

struct WindowRange {
  int32_t device = 0;
  int file = -1;
  WindowsShape shape;
  std::byte* pool = nullptr;
  std::byte* places = nullptr;
  // Entry i: num_changes right after a block was mapped into place i, or 0 if place i has no block.
  std::vector<uint64_t> changed_at;

  size_t PoolBytes() const { return static_cast<size_t>(shape.num_blocks) * shape.block_bytes; }
  size_t PlacesBytes() const { return static_cast<size_t>(shape.num_places) * shape.block_bytes; }
};

struct AllWindows {
  std::mutex mutex;
  std::map<const std::byte*, std::unique_ptr<WindowRange>> by_places;
};

// Never destroyed, because static objects of a program can destroy windows after main returns.
AllWindows& All() {
  static auto& all = *new AllWindows();
  return all;
}

std::atomic<uint64_t> num_changes{0};
// False if no windows exist. While it is false, LookAt, which CopyAsync16 calls, takes no lock.
std::atomic<bool> are_there_windows{false};
thread_local uint64_t changes_at_enqueue = 0;

void* Map(void* at, size_t bytes, int protection, int flags, int file, int64_t offset) {
  void* mapped = mmap(at, bytes, protection, flags, file, offset);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

void Release(const WindowRange& range) {
  if (range.pool != nullptr) {
    munmap(range.pool, range.PoolBytes());
  }
  if (range.places != nullptr) {
    munmap(range.places, range.PlacesBytes());
  }
  if (range.file >= 0) {
    close(range.file);
  }
}

// Creates the file and both mappings. Returns false on failure; the caller must then call Release.
bool Make(WindowRange* range) {
  constexpr int kPoison = 0xFF;
  range->file = memfd_create("emulated-windows", MFD_CLOEXEC);
  if (range->file < 0 || ftruncate(range->file, static_cast<off_t>(range->PoolBytes())) != 0) {
    return false;
  }
  range->pool = static_cast<std::byte*>(
      Map(nullptr, range->PoolBytes(), PROT_READ | PROT_WRITE, MAP_SHARED, range->file, 0));
  range->places = static_cast<std::byte*>(Map(nullptr,
                                              range->PlacesBytes(),
                                              PROT_NONE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                              -1,
                                              0));
  if (range->pool == nullptr || range->places == nullptr) {
    return false;
  }
  memset(range->pool, kPoison, range->PoolBytes());
  return true;
}

bool ShowNothing(WindowRange& range, int64_t place, int64_t count) {
  std::byte* at = range.places + static_cast<size_t>(place) * range.shape.block_bytes;
  std::fill_n(range.changed_at.begin() + place, count, 0);
  ++num_changes;
  return Map(at,
             static_cast<size_t>(count) * range.shape.block_bytes,
             PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1,
             0) != nullptr;
}

}  // namespace

uint64_t NumPlaceChanges() { return num_changes; }

Sight LookAt(const void* address, size_t bytes, uint64_t num_changes_before) {
  if (!are_there_windows) {
    return Sight::kElsewhere;
  }
  const auto* at = static_cast<const std::byte*>(address);
  AllWindows& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto after = all.by_places.upper_bound(at);
  if (after == all.by_places.begin()) {
    return Sight::kElsewhere;
  }
  const WindowRange& range = *std::prev(after)->second;
  const auto offset = static_cast<size_t>(at - range.places);
  if (offset >= range.PlacesBytes()) {
    return Sight::kElsewhere;
  }
  const size_t last = (offset + bytes - 1) / range.shape.block_bytes;
  for (size_t place = offset / range.shape.block_bytes; place <= last; ++place) {
    const uint64_t changed_at = range.changed_at[place];
    if (changed_at == 0) {
      return Sight::kNothing;
    }
    if (changed_at > num_changes_before) {
      return Sight::kChanged;
    }
  }
  return Sight::kShown;
}

uint64_t ChangesAtEnqueue() { return changes_at_enqueue; }

RunningOperation::RunningOperation(uint64_t changes) : before_(changes_at_enqueue) {
  changes_at_enqueue = changes;
}
RunningOperation::~RunningOperation() { changes_at_enqueue = before_; }

}  // namespace emulator

// The page size is the system's, unless QUIRE_EMULATED_PAGE_BYTES sets a larger one, such as a
// GPU's 2 MiB. The variable must be a multiple of the system's page size.
int WindowPageBytes(size_t* bytes) {
  const char* given = std::getenv("QUIRE_EMULATED_PAGE_BYTES");  // NOLINT(concurrency-mt-unsafe)
  *bytes = given != nullptr ? std::strtoull(given, nullptr, 10)
                            : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return 0;
}

int CreateWindows(const WindowsShape& shape, Windows* windows) {
  *windows = {};
  if (const int error = emulator::RefuseWhileRecording(); error != 0) {
    return error;
  }
  size_t page_bytes = 0;
  WindowPageBytes(&page_bytes);
  if (page_bytes == 0 || shape.block_bytes == 0 || shape.block_bytes % page_bytes != 0 ||
      shape.num_blocks <= 0 || shape.num_places <= 0) {
    return emulator::kErrorInvalidValue;
  }
  emulator::AllWindows& all = emulator::All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto range = std::make_unique<emulator::WindowRange>();
  range->device = emulator::CurrentDevice();
  range->shape = shape;
  if (static_cast<int64_t>(range->PoolBytes()) >
          emulator::kDeviceBytes - emulator::NumUsedBytes(range->device) ||
      !emulator::Make(range.get())) {
    emulator::Release(*range);
    return emulator::kErrorMemoryAllocation;
  }
  range->changed_at.resize(static_cast<size_t>(shape.num_places));
  emulator::AddMappedMemory(range->device, range->pool, range->PoolBytes(), range->PoolBytes());
  emulator::AddMappedMemory(range->device, range->places, range->PlacesBytes(), 0);
  *windows = {.handle = range.get(), .pool = range->pool, .places = range->places};
  emulator::are_there_windows = true;
  all.by_places[range->places] = std::move(range);
  return 0;
}

int DestroyWindows(void* handle) {
  if (handle == nullptr) {
    return 0;
  }
  if (const int error = emulator::RefuseWhileRecording(); error != 0) {
    return error;
  }
  const auto* range = static_cast<emulator::WindowRange*>(handle);
  emulator::RunAllStreams(range->device);
  emulator::RemoveMappedMemory(range->pool);
  emulator::RemoveMappedMemory(range->places);
  emulator::AllWindows& all = emulator::All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  // Releases under the lock. Otherwise another thread could create windows at the same addresses
  // before the erase.
  emulator::Release(*range);
  all.by_places.erase(range->places);
  emulator::are_there_windows = !all.by_places.empty();
  return 0;
}

int MapPlaces(void* handle, int64_t place, BlockId block, int64_t count) {
  auto& range = *static_cast<emulator::WindowRange*>(handle);
  const std::lock_guard<std::mutex> lock(emulator::All().mutex);
  if (place < 0 || count <= 0 || place + count > range.shape.num_places || block < 0 ||
      block + count > range.shape.num_blocks) {
    return emulator::kErrorInvalidValue;
  }
  std::byte* at = range.places + static_cast<size_t>(place) * range.shape.block_bytes;
  if (emulator::Map(at,
                    static_cast<size_t>(count) * range.shape.block_bytes,
                    PROT_READ,
                    MAP_SHARED | MAP_FIXED,
                    range.file,
                    block * static_cast<int64_t>(range.shape.block_bytes)) == nullptr) {
    emulator::ShowNothing(range, place, count);
    return emulator::kErrorMemoryAllocation;
  }
  const uint64_t change = ++emulator::num_changes;
  std::fill_n(range.changed_at.begin() + place, count, change);
  return 0;
}

int UnmapPlaces(void* handle, int64_t place, int64_t count) {
  auto& range = *static_cast<emulator::WindowRange*>(handle);
  const std::lock_guard<std::mutex> lock(emulator::All().mutex);
  if (place < 0 || count <= 0 || place + count > range.shape.num_places) {
    return emulator::kErrorInvalidValue;
  }
  return emulator::ShowNothing(range, place, count) ? 0 : emulator::kErrorMemoryAllocation;
}

}  // namespace quire::gpu
