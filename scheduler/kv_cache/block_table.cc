#include "scheduler/kv_cache/block_table.h"

#include <algorithm>

#include "common/base/check.h"

namespace quire {

BlockId BlockTable::operator[](int32_t logical_block_index) const {
  QUIRE_CHECK(logical_block_index >= 0 && logical_block_index < num_blocks());
  return block_ids_[static_cast<size_t>(logical_block_index)];
}

int32_t BlockTable::NumFilled(int32_t logical_block_index, int32_t block_size_tokens) const {
  QUIRE_CHECK(logical_block_index >= 0 && logical_block_index < num_blocks());
  return std::min(block_size_tokens, num_tokens_ - logical_block_index * block_size_tokens);
}

void BlockTable::Abandon() {
  block_ids_.clear();
  num_tokens_ = 0;
  num_passed_blocks_ = 0;
}

}  // namespace quire
