// HostTable is the block table of a swapped sequence: it names the host blocks to which the
// sequence's blocks were copied. Sequences that shared a block share its host block.
//
// Host blocks are reused. The generation of a host block is the id of the step that filled it last.
// A table keeps the generation of its host blocks. So a worker can detect that a later step has
// overwritten one of them.
//
// Thread safety: a value type, not thread-safe. Move-only: ref_count would not count a copy.
// Invariants:    a table has exactly the host blocks that its tokens need. It has none for its
//                first num_passed_blocks() blocks, which lie before the sliding window. Only
//                SwapSpace changes a table.
// Source:        PagedAttention, Kwon et al. 2023, section 4.5.
#ifndef QUIRE_SCHEDULER_KV_CACHE_HOST_TABLE_H_
#define QUIRE_SCHEDULER_KV_CACHE_HOST_TABLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace quire {

// A device block, and the host block that a swap copies it to or from.
struct SwappedBlock {
  BlockId block = kNullBlockId;
  HostBlockId host_block = 0;
  uint64_t generation = 0;  // id of the step that filled host_block
};

class HostTable {
 public:
  HostTable() = default;
  HostTable(HostTable&&) = default;
  HostTable& operator=(HostTable&&) = default;
  HostTable(const HostTable&) = delete;
  HostTable& operator=(const HostTable&) = delete;

  bool empty() const { return num_tokens_ == 0; }
  int32_t num_tokens() const { return num_tokens_; }
  int32_t num_passed_blocks() const { return num_passed_blocks_; }
  int32_t num_blocks() const {
    return num_passed_blocks_ + static_cast<int32_t>(host_block_ids_.size());
  }
  std::span<const HostBlockId> host_block_ids() const { return host_block_ids_; }
  // All host blocks of a table have the same generation, because one step swaps out the whole
  // table.
  uint64_t generation() const { return generation_; }

  // Empties the table without giving back references. REQUIRES: the references were given back
  // before, or the whole pool is dropped.
  void Abandon() {
    host_block_ids_.clear();
    generation_ = 0;
    num_tokens_ = 0;
    num_passed_blocks_ = 0;
  }

 private:
  friend class SwapSpace;

  std::vector<HostBlockId> host_block_ids_;
  uint64_t generation_ = 0;
  int32_t num_tokens_ = 0;
  int32_t num_passed_blocks_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_HOST_TABLE_H_
