#include "kernels/cpu/huge_arena.h"

#include <algorithm>
#include <cstdlib>

#include "common/base/math.h"

#include <sys/mman.h>

namespace quire {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunkBytes = size_t{64} << 20;
// A larger request gets a separate chunk, else it could leave too much of a shared chunk unused.
constexpr size_t kMaxSharedBytes = kChunkBytes / 4;

std::shared_ptr<std::byte> MapChunk(size_t bytes) {
  void* memory = std::aligned_alloc(kHugePage, bytes);
  if (memory == nullptr) {
    return nullptr;
  }
  // The result is ignored: the memory works without transparent huge pages, too.
  static_cast<void>(::madvise(memory, bytes, MADV_HUGEPAGE));
  return {static_cast<std::byte*>(memory), [](std::byte* chunk) { std::free(chunk); }};
}

}  // namespace

size_t HugeArena::TakenBytes(size_t bytes) {
  return bytes > kMaxSharedBytes ? RoundUp(bytes, kHugePage) : bytes;
}

std::shared_ptr<std::byte> HugeArena::Take(size_t bytes) {
  if (bytes > SIZE_MAX / 2) {
    return nullptr;
  }
  if (bytes > kMaxSharedBytes) {
    return MapChunk(RoundUp(bytes, kHugePage));
  }
  const size_t size = RoundUp(std::max<size_t>(bytes, 1), kAlignment);
  if (chunk_ == nullptr || size > kChunkBytes - used_bytes_) {
    chunk_ = MapChunk(kChunkBytes);
    used_bytes_ = 0;
  }
  if (chunk_ == nullptr) {
    return nullptr;
  }
  std::byte* taken = chunk_.get() + used_bytes_;
  used_bytes_ += size;
  return {chunk_, taken};
}

}  // namespace quire
