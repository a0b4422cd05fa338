// BuddyAllocator hands out runs of KV slots whose length is a power of two, as the PagedAttention
// paper assumes for Orca. A KV slot has room for K and V of one token. The pool's size need not be
// a power of two: the pool is first cut into the largest aligned chunks that fit.
//
// Thread safety: not thread-safe.
// Invariants:    chunks are disjoint, lie in the pool, and begin at a multiple of their length;
//                free buddies are merged.
// Cost:          O(log(pool)) set operations per call.
// Source:        Knowlton 1965; Kwon et al. 2023, section 6.1.
#ifndef QUIRE_SCHEDULER_SIM_BUDDY_ALLOCATOR_H_
#define QUIRE_SCHEDULER_SIM_BUDDY_ALLOCATOR_H_

#include <array>
#include <cstdint>
#include <optional>
#include <set>

namespace quire {

class BuddyAllocator {
 public:
  // REQUIRES: num_slots >= 1.
  explicit BuddyAllocator(int32_t num_slots);

  struct Chunk {
    int32_t begin = 0;
    int32_t num_slots = 0;  // a power of two

    friend bool operator==(const Chunk&, const Chunk&) = default;
  };

  // Returns a chunk of num_slots slots, rounded up to a power of two. Cuts the chunk from the
  // smallest free chunk that is large enough; of several, from the first. Returns nullopt if no
  // free chunk is large enough. REQUIRES: num_slots >= 1.
  std::optional<Chunk> Allocate(int32_t num_slots);

  // REQUIRES: chunk came from Allocate and was not freed since.
  void Free(const Chunk& chunk);

  int32_t num_slots() const { return num_slots_; }
  int32_t num_free_slots() const { return num_free_slots_; }

 private:
  static constexpr int kNumOrders = 31;

  int32_t num_slots_;
  int32_t num_free_slots_;
  // free_[k] holds the first slot of each free chunk of 2^k slots.
  std::array<std::set<int32_t>, kNumOrders> free_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_BUDDY_ALLOCATOR_H_
