#include "scheduler/sim/buddy_allocator.h"

#include <bit>

#include "common/base/check.h"

namespace quire {
namespace {

// Returns the smallest order whose chunks hold num_slots slots. A chunk of order k has 2^k slots.
int OrderFor(int32_t num_slots) {
  return static_cast<int>(std::bit_width(static_cast<uint32_t>(num_slots) - 1));
}

}  // namespace

BuddyAllocator::BuddyAllocator(int32_t num_slots)
    : num_slots_(num_slots), num_free_slots_(num_slots) {
  QUIRE_CHECK(num_slots >= 1);
  // Cuts the longest chunk first, so that each chunk begins at a multiple of its length.
  int32_t begin = 0;
  for (int order = kNumOrders - 1; order >= 0; --order) {
    if ((num_slots >> order) & 1) {
      free_[static_cast<size_t>(order)].insert(begin);
      begin += 1 << order;
    }
  }
}

std::optional<BuddyAllocator::Chunk> BuddyAllocator::Allocate(int32_t num_slots) {
  QUIRE_CHECK(num_slots >= 1);
  const int wanted = OrderFor(num_slots);
  int order = wanted;
  while (order < kNumOrders && free_[static_cast<size_t>(order)].empty()) {
    ++order;
  }
  if (order >= kNumOrders) {
    return std::nullopt;
  }
  std::set<int32_t>& candidates = free_[static_cast<size_t>(order)];
  const int32_t begin = *candidates.begin();
  candidates.erase(candidates.begin());
  while (order > wanted) {
    --order;
    free_[static_cast<size_t>(order)].insert(begin + (1 << order));
  }
  num_free_slots_ -= 1 << wanted;
  return Chunk{.begin = begin, .num_slots = 1 << wanted};
}

void BuddyAllocator::Free(const Chunk& chunk) {
  int order = OrderFor(chunk.num_slots);
  int32_t begin = chunk.begin;
  QUIRE_CHECK(chunk.num_slots == 1 << order && begin % chunk.num_slots == 0);
  num_free_slots_ += chunk.num_slots;
  QUIRE_CHECK(num_free_slots_ <= num_slots_);
  // Merges the chunk with its free buddies. The chunks that the constructor cut have no buddies in
  // the pool, so merging never makes larger chunks.
  while (free_[static_cast<size_t>(order)].erase(begin ^ (1 << order)) == 1) {
    begin &= ~(1 << order);
    ++order;
  }
  QUIRE_CHECK(free_[static_cast<size_t>(order)].insert(begin).second);
}

}  // namespace quire
