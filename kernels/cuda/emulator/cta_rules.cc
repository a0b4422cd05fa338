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
  // A step size that is coprime to num_ctas reaches each CTA exactly once.
  uint64_t step = 1 + (rules.seed * 7919 + num_ctas / 3) % num_ctas;
  while (std::gcd(step, num_ctas) != 1) {
    ++step;
  }
  return (i * step + rules.seed) % num_ctas;
}

void CtaWatch::Begin(const References* references) {
  *this = CtaWatch();
  if (!rules.watches_memory || references == nullptr) {
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

void CtaWatch::AcquireRelease() {
  TakeChanges(&own_);
  if (!sees_released_) {
    for (const Bytes& bytes : released_) {
      Put(bytes, /*is_hidden=*/false);
    }
  }
  sees_released_ = true;
}

bool CtaWatch::EndCta() {
  TakeChanges(&unreleased_);
  released_.insert(released_.end(), own_.begin(), own_.end());
  own_.clear();
  for (const std::vector<Bytes>* changes : {&released_, &unreleased_}) {
    for (const Bytes& bytes : *changes) {
      Put(bytes, /*is_hidden=*/true);
    }
  }
  sees_released_ = false;
  return is_clean_;
}

void CtaWatch::End() {
  for (const std::vector<Bytes>* changes : {&released_, &unreleased_}) {
    for (const Bytes& bytes : *changes) {
      Put(bytes, /*is_hidden=*/false);
    }
  }
}

// Adds to `changes` what the running CTA has changed since the last call of TakeChanges or Put.
void CtaWatch::TakeChanges(std::vector<Bytes>* changes) {
  for (Bytes& changed : ChangedSince(before_)) {
    Mark(changed);
    changes->push_back(std::move(changed));
  }
}

void CtaWatch::Mark(const Bytes& changed) {
  const size_t index = IndexOf(before_, changed.begin);
  Watched& watched = watched_[index];
  const auto first = static_cast<size_t>(changed.begin - before_[index].begin);
  for (size_t i = 0; i < changed.held.size(); ++i) {
    is_clean_ = is_clean_ && (!watched.is_changed[first + i] || watched.is_exempt[first + i]);
    watched.is_changed[first + i] = true;
    before_[index].held[first + i] = changed.held[i];
  }
}

// Writes the bytes, or NaN if is_hidden, to memory and to before_.
void CtaWatch::Put(const Bytes& bytes, bool is_hidden) {
  constexpr std::byte kHidden{0xFF};
  const size_t index = IndexOf(before_, bytes.begin);
  const auto first = static_cast<size_t>(bytes.begin - before_[index].begin);
  for (size_t i = 0; i < bytes.held.size(); ++i) {
    if (!watched_[index].is_exempt[first + i]) {
      bytes.begin[i] = is_hidden ? kHidden : bytes.held[i];
      before_[index].held[first + i] = bytes.begin[i];
    }
  }
}

}  // namespace quire::gpu::emulator
