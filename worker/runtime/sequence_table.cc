#include "worker/runtime/sequence_table.h"

#include "common/base/check.h"

namespace quire {

SequenceTable::SequenceTable(int32_t max_sequences, int32_t num_blocks)
    : entries_(static_cast<size_t>(max_sequences)), num_refs_(static_cast<size_t>(num_blocks)) {}

SequenceState* SequenceTable::Find(SequenceHandle handle) {
  Entry& entry = entries_[handle];
  return entry.in_use ? &entry.state : nullptr;
}

std::optional<KnownSequence> SequenceTable::View(SequenceHandle handle) const {
  const Entry& entry = entries_[handle];
  if (!entry.in_use) {
    return std::nullopt;
  }
  return KnownSequence{.num_known_tokens = entry.state.num_known_tokens(),
                       .num_computed_tokens = entry.state.num_computed_tokens,
                       .block_ids = entry.state.block_ids};
}

void SequenceTable::Introduce(const SequenceIntroduction& introduction) {
  Entry& entry = entries_[introduction.handle];
  if (entry.in_use) {
    Release(introduction.handle);
  }
  ++num_sequences_;
  entry.in_use = true;
  SequenceState& state = entry.state;
  state.token_ids.assign(introduction.token_ids.begin(), introduction.token_ids.end());
  state.num_prompt_tokens = introduction.num_prompt_tokens;
  state.num_computed_tokens = introduction.num_computed_tokens;
  state.block_ids.assign(introduction.block_ids.begin(), introduction.block_ids.end());
  Reference(state.block_ids);
  state.sampling = introduction.sampling;
  state.sampling.seed += static_cast<uint64_t>(introduction.sequence_index);
}

void SequenceTable::Release(SequenceHandle handle) {
  Entry& entry = entries_[handle];
  QUIRE_CHECK(entry.in_use);
  entry.in_use = false;
  --num_sequences_;
  Dereference(entry.state.block_ids);
  entry.state = SequenceState();
}

void SequenceTable::Append(std::span<const BlockId> block_ids, SequenceState* sequence) {
  sequence->block_ids.insert(sequence->block_ids.end(), block_ids.begin(), block_ids.end());
  Reference(block_ids);
}

void SequenceTable::Reference(std::span<const BlockId> block_ids) {
  for (const BlockId block : block_ids) {
    const bool is_new = num_refs_[static_cast<size_t>(block)]++ == 0;
    num_blocks_ += is_new && block != kNullBlockId ? 1 : 0;
  }
}

void SequenceTable::Dereference(std::span<const BlockId> block_ids) {
  for (const BlockId block : block_ids) {
    const bool is_last = --num_refs_[static_cast<size_t>(block)] == 0;
    num_blocks_ -= is_last && block != kNullBlockId ? 1 : 0;
  }
}

}  // namespace quire
