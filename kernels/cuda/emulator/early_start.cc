#include "kernels/cuda/emulator/early_start.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace quire::gpu::emulator {
namespace {

constexpr int kResultPoison = 0xFF;  // NaN in every type

// Only the first CTAs of a kernel are checked for early writes, because a check copies all memory
// that the kernel refers to.
constexpr int kWatchedCtas = 4;

// Bytes that the last operation changed, if the next operation starts early.
thread_local std::vector<Bytes> changes;
// The running operation, if it starts early and the last operation's changes are noted; else null.
thread_local const Operation* early = nullptr;
thread_local int num_early_ctas = 0;  // CTAs of `early` that have begun

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
  const std::vector<Bytes> before = notes ? CopyOf(operation.references) : std::vector<Bytes>();
  const int error = RunOperation(operation);
  early = nullptr;
  changes = error == 0 ? ChangedSince(before) : std::vector<Bytes>();
  return error;
}

void EarlyPart::Begin() {
  is_running_ = true;
  results_ = changes;
  for (Bytes& result : results_) {
    // Reads the result again, because an earlier CTA may have overwritten it.
    std::copy_n(result.begin, result.held.size(), result.held.begin());
    memset(result.begin, kResultPoison, result.held.size());
  }
  reachable_ = num_early_ctas++ < kWatchedCtas ? CopyOf(early->references) : std::vector<Bytes>();
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
