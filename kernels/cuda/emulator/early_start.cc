#include "kernels/cuda/emulator/early_start.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace quire::gpu::emulator {
namespace {

constexpr int kResultPoison = 0xFF;  // NaN in every type
// Operations on more memory are not emulated as overlapping: copies of the memory take too long.
constexpr size_t kMaxBytes = size_t{16} << 20;

// CTAs of a kernel whose early writes are looked for: the first ones, because to look costs a copy
// of all memory that the kernel refers to.
constexpr int kWatchedCtas = 4;

// Changes by the operation that ran last, if the next one starts early.
thread_local std::vector<Bytes> changes;
// The operation that runs now, if it starts early beside one whose changes are noted; else null.
thread_local const Operation* early = nullptr;
thread_local int num_early_ctas = 0;  // of `early`, so far

std::vector<Bytes> Copy(const References& references) {
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
    // Windows and their pools are left out, because a place without a block cannot be read.
    if (is_new && !each.is_mapped) {
      copies.push_back({const_cast<std::byte*>(each.begin), {each.begin, each.begin + each.bytes}});
    }
  }
  return copies;
}

// Returns the bytes that differ from `before`, as they are now.
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

bool IsUnchanged(const Bytes& bytes) {
  return memcmp(bytes.begin, bytes.held.data(), bytes.held.size()) == 0;
}

}  // namespace

bool StartsEarly() { return early != nullptr; }

int RunOperationBefore(const Operation& operation, const Operation* next) {
  const bool is_early = operation.starts_early && !changes.empty();
  early = is_early ? &operation : nullptr;
  num_early_ctas = 0;
  const bool notes = next != nullptr && next->starts_early && operation.references.AreAllocated();
  const std::vector<Bytes> before = notes ? Copy(operation.references) : std::vector<Bytes>();
  const int error = RunOperation(operation);
  early = nullptr;
  changes = error == 0 ? ChangedSince(before) : std::vector<Bytes>();
  return error;
}

void EarlyPart::Begin() {
  is_running_ = true;
  results_ = changes;
  for (Bytes& result : results_) {
    // An earlier CTA may have written over a result.
    std::copy_n(result.begin, result.held.size(), result.held.begin());
    memset(result.begin, kResultPoison, result.held.size());
  }
  reachable_ = num_early_ctas++ < kWatchedCtas ? Copy(early->references) : std::vector<Bytes>();
}

bool EarlyPart::End() {
  is_running_ = false;
  const bool is_clean = std::all_of(reachable_.begin(), reachable_.end(), IsUnchanged);
  for (const Bytes& result : results_) {
    std::copy(result.held.begin(), result.held.end(), result.begin);
  }
  return is_clean;
}

}  // namespace quire::gpu::emulator
