#include "kernels/cuda/emulator/memory_changes.h"

#include <algorithm>
#include <cstring>

namespace quire::gpu::emulator {

std::vector<Bytes> CopyOf(const References& references) {
  constexpr size_t kMaxBytes = size_t{16} << 20;
  std::vector<Bytes> copies;
  size_t total = 0;
  for (const Allocation& each : references.allocations()) {
    const bool is_new = std::none_of(copies.begin(), copies.end(), [&each](const Bytes& copy) {
      return copy.begin == each.begin;
    });
    total += is_new ? each.bytes : 0;
    if (total > kMaxBytes) {
      return {};
    }
    if (is_new && !each.is_mapped) {
      copies.push_back({const_cast<std::byte*>(each.begin), {each.begin, each.begin + each.bytes}});
    }
  }
  return copies;
}

std::vector<Bytes> ChangedSince(const std::vector<Bytes>& before) {
  constexpr size_t kChunk = 4096;  // compared at once
  std::vector<Bytes> changed;
  for (const Bytes& copy : before) {
    for (size_t i = 0; i < copy.held.size();) {
      const size_t chunk = std::min(kChunk, copy.held.size() - i);
      if (memcmp(copy.begin + i, copy.held.data() + i, chunk) == 0) {
        i += chunk;
        continue;
      }
      size_t end = i;
      while (end < copy.held.size() && copy.begin[end] != copy.held[end]) {
        ++end;
      }
      if (end > i) {
        changed.push_back({copy.begin + i, {copy.begin + i, copy.begin + end}});
      }
      i = end + 1;
    }
  }
  return changed;
}

}  // namespace quire::gpu::emulator
