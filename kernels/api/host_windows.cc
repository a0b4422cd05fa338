#include "kernels/api/host_windows.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/math.h"

#include <sys/mman.h>

namespace quire {
namespace {

// Mappings that are left for the rest of the process: libraries, thread stacks, arenas, weights.
constexpr int64_t kReservedMappings = 4096;

absl::Status NoMemory(const char* what) {
  return Error(
      absl::StatusCode::kResourceExhausted,
      "MEMORY",
      std::string("windows: cannot ") + what + ": " + std::generic_category().message(errno));
}

struct Mapping {
  void* data = MAP_FAILED;
  size_t bytes = 0;

  Mapping(size_t size, int protection, int flags, int file)
      : data(mmap(nullptr, size, protection, flags, file, 0)), bytes(size) {}
  ~Mapping() {
    if (data != MAP_FAILED) {
      munmap(data, bytes);
    }
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
};

class File {
 public:
  explicit File(int64_t bytes) : descriptor_(Make()) {
    if (descriptor_ >= 0 && ftruncate(descriptor_, bytes) != 0) {
      close(descriptor_);
      descriptor_ = -1;
    }
  }
  ~File() {
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int get() const { return descriptor_; }

 private:
  // Hardened hosts (vm.memfd_noexec) refuse a file without MFD_NOEXEC_SEAL. Linux before 6.3 does
  // not know this flag, and gets a second call without it.
  static int Make() {
    constexpr unsigned kNoExecSeal = 8;
    const int descriptor = memfd_create("kv-cache", MFD_CLOEXEC | kNoExecSeal);
    return descriptor >= 0 || errno != EINVAL ? descriptor : memfd_create("kv-cache", MFD_CLOEXEC);
  }

  int descriptor_;
};

class HostWindows final : public WindowMemory {
 public:
  HostWindows(const WindowShape& shape,
              std::unique_ptr<File> file,
              std::unique_ptr<Mapping> pool,
              std::unique_ptr<Mapping> windows)
      : WindowMemory(shape, pool->data, windows->data),
        file_(std::move(file)),
        pool_mapping_(std::move(pool)),
        windows_mapping_(std::move(windows)),
        max_mapped_places_(MaxMappedHostPlaces()) {}

  int64_t max_mapped_places() const override { return max_mapped_places_; }

  absl::Status Map(int64_t place, BlockId block, int64_t count) override {
    if (Place(place,
              count,
              PROT_READ,
              MAP_SHARED | MAP_POPULATE,
              file_->get(),
              block * shape().block_bytes)) {
      return absl::OkStatus();
    }
    absl::Status status = NoMemory("map blocks");
    // The failed mmap may have removed the old mapping. Unmap covers the hole, else the next
    // allocation could get these addresses.
    QUIRE_CHECK(Unmap(place, count).ok());
    return status;
  }

  absl::Status Unmap(int64_t place, int64_t count) override {
    return Place(place, count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
               ? absl::OkStatus()
               : NoMemory("unmap blocks");
  }

  absl::Status Clear() override {
    return fallocate(file_->get(),
                     FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     0,
                     static_cast<off_t>(pool_mapping_->bytes)) == 0
               ? absl::OkStatus()
               : NoMemory("clear the pool");
  }

 private:
  bool Place(int64_t place, int64_t count, int protection, int flags, int file, int64_t offset) {
    std::byte* at = static_cast<std::byte*>(windows()) + place * shape().block_bytes;
    const auto bytes = static_cast<size_t>(count * shape().block_bytes);
    if (mmap(at, bytes, protection, flags | MAP_FIXED, file, offset) != at) {
      return false;
    }
    // Keeps users' text out of core dumps; each new mapping needs the flag.
    madvise(at, bytes, MADV_DONTDUMP);
    return true;
  }

  const std::unique_ptr<File> file_;
  const std::unique_ptr<Mapping> pool_mapping_;
  const std::unique_ptr<Mapping> windows_mapping_;
  const int64_t max_mapped_places_;
};

}  // namespace

int64_t HostPageBytes() { return sysconf(_SC_PAGESIZE); }

int64_t MaxMappings() {
  constexpr int64_t kLinuxDefaultMappings = 65'530;
  int64_t limit = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  return limit > 0 ? limit : kLinuxDefaultMappings;
}

// At worst each place (room for one block) with a mapped block takes two of the process's mappings:
// one for the place, and one for the reserved addresses up to the next such place.
int64_t MaxMappedHostPlaces() { return (MaxMappings() - kReservedMappings) / 2; }

absl::StatusOr<std::unique_ptr<WindowMemory>> MakeHostWindows(const WindowShape& shape) {
  const auto pool_bytes = CheckedMultiply(shape.block_bytes, shape.num_blocks);
  const auto window_bytes = CheckedMultiply(shape.block_bytes, shape.num_places);
  if (!pool_bytes.has_value() || !window_bytes.has_value()) {
    errno = EOVERFLOW;
    return NoMemory("reserve addresses");
  }
  auto file = std::make_unique<File>(*pool_bytes);
  if (file->get() < 0) {
    return NoMemory("make the pool");
  }
  auto pool = std::make_unique<Mapping>(
      static_cast<size_t>(*pool_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file->get());
  if (pool->data == MAP_FAILED) {
    return NoMemory("map the pool");
  }
  auto windows = std::make_unique<Mapping>(static_cast<size_t>(*window_bytes),
                                           PROT_NONE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                           -1);
  if (windows->data == MAP_FAILED) {
    return NoMemory("reserve addresses");
  }
  // Huge pages are only for speed, so a refusal is ignored. MADV_DONTDUMP keeps users' text out of
  // core dumps.
  madvise(pool->data, pool->bytes, MADV_HUGEPAGE);
  madvise(pool->data, pool->bytes, MADV_DONTDUMP);
  return std::make_unique<HostWindows>(shape, std::move(file), std::move(pool), std::move(windows));
}

}  // namespace quire
