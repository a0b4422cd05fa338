#include "kernels/cuda/emulator/cta_rules.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace quire::gpu::emulator {
namespace {

thread_local CtaRules rules;

// Returns the index of the copy that contains the address, or copies.size().
size_t IndexOf(const std::vector<Bytes>& copies, const std::byte* address) {
  const auto found = std::find_if(copies.begin(), copies.end(), [address](const Bytes& copy) {
    return address >= copy.begin && address < copy.begin + copy.held.size();
  });
  return static_cast<size_t>(found - copies.begin());
}

}  // namespace

CtaRules SetCtaRules(CtaRules new_rules) { return std::exchange(rules, new_rules); }

uint64_t NthCta(uint64_t i, uint64_t num_ctas) {
  if (rules.order == CtaOrder::kBackward) {
    return num_ctas - 1 - i;
  }
  if (rules.order == CtaOrder::kForward || num_ctas == 1) {
    return i;
  }
  // Steps of a size that has no common divisor with num_ctas reach each CTA once.
  uint64_t step = 1 + (rules.seed * 7919 + num_ctas / 3) % num_ctas;
  while (std::gcd(step, num_ctas) != 1) {
    ++step;
  }
  return (i * step + rules.seed) % num_ctas;
}

void CtaWatch::Begin(const References* references) {
  before_.clear();
  watched_.clear();
  if (!rules.watches_writes || references == nullptr) {
    return;
  }
  before_ = CopyOf(*references);
  for (const Bytes& copy : before_) {
    watched_.push_back({std::vector<bool>(copy.held.size()), std::vector<bool>(copy.held.size())});
  }
}

void CtaWatch::Exempt(const void* address, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(address);
  const size_t index = IndexOf(before_, at);
  for (size_t i = 0; i < bytes && index < before_.size(); ++i) {
    watched_[index].is_exempt[static_cast<size_t>(at - before_[index].begin) + i] = true;
  }
}

bool CtaWatch::EndCta() {
  bool is_clean = true;
  for (const Bytes& changed : ChangedSince(before_)) {
    is_clean = Mark(changed) && is_clean;
  }
  return is_clean;
}

// Marks the bytes as changed. Returns whether none of them was marked before.
bool CtaWatch::Mark(const Bytes& changed) {
  const size_t index = IndexOf(before_, changed.begin);
  Watched& watched = watched_[index];
  const auto first = static_cast<size_t>(changed.begin - before_[index].begin);
  std::copy(changed.held.begin(),
            changed.held.end(),
            before_[index].held.begin() + static_cast<ptrdiff_t>(first));
  bool is_clean = true;
  for (size_t i = first; i < first + changed.held.size(); ++i) {
    is_clean = is_clean && (!watched.is_changed[i] || watched.is_exempt[i]);
    watched.is_changed[i] = true;
  }
  return is_clean;
}

}  // namespace quire::gpu::emulator
