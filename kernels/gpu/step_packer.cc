#include "kernels/gpu/step_packer.h"

#include <algorithm>
#include <bit>

#include "common/base/math.h"

namespace quire {
namespace {

constexpr int64_t kArrayAlignment = 16;

// Copies `given` values to an array of `count` elements, and fills the rest with `padding`.
template <typename T>
void Fill(
    std::byte* bytes, int64_t offset, int64_t count, const T* from, int64_t given, T padding) {
  T* to = reinterpret_cast<T*>(bytes + offset);
  std::copy_n(from, given, to);
  std::fill(to + given, to + count, padding);
}

template <typename T>
const T* At(void* destination, int64_t offset) {
  return reinterpret_cast<const T*>(static_cast<std::byte*>(destination) + offset);
}

int32_t QueryLen(const StepInputs& host, int32_t seq) {
  return host.query_start[seq + 1] - host.query_start[seq];
}

}  // namespace

int32_t DecodeBucket(int32_t num_seqs) {
  if (num_seqs <= 8) {
    return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(std::max(num_seqs, 1))));
  }
  const int32_t step = num_seqs <= 64 ? 8 : num_seqs <= 256 ? 16 : 32;
  return RoundUp(num_seqs, step);
}

void StepPacker::Classify(const StepInputs& host) {
  decodes_.clear();
  step_ = {};
  for (int32_t seq = 0; seq < host.num_seqs; ++seq) {
    if (QueryLen(host, seq) == 1) {
      decodes_.push_back(seq);
      step_.max_splits += DivCeil(host.seq_lens[seq], split_tokens_);
    }
  }
  step_.num_decodes = static_cast<int32_t>(decodes_.size());
  step_.is_decode_only = pad_decodes_ && host.num_seqs > 0 && step_.num_decodes == host.num_seqs &&
                         host.num_logits == host.num_seqs;
  step_.shape = {.num_seqs = host.num_seqs,
                 .max_blocks_per_seq = host.max_blocks_per_seq,
                 .reads_windows = host.first_places != nullptr};
  if (step_.is_decode_only) {
    step_.shape.num_seqs = DecodeBucket(host.num_seqs);
    step_.shape.max_blocks_per_seq = static_cast<int32_t>(
        std::bit_ceil(static_cast<uint32_t>(std::max(host.max_blocks_per_seq, 1))));
    step_.num_decodes = step_.shape.num_seqs;
  }
}

void StepPacker::CollectItems(const StepInputs& host) {
  items_.clear();
  for (int32_t seq = 0; seq < host.num_seqs; ++seq) {
    const int32_t rows = QueryLen(host, seq) * group_;
    for (int32_t row = 0; QueryLen(host, seq) > 1 && row < rows; row += gpu::kPrefillRows) {
      items_.push_back({.sequence = seq, .first_row = row});
    }
  }
  // Sorts the items by the tokens before the item's first row, most tokens first, else an item with
  // a long context could run alone at the end. An item's own rows are ignored: they add little.
  auto context = [&](const gpu::PrefillItem& item) {
    return host.seq_lens[item.sequence] - QueryLen(host, item.sequence) + item.first_row / group_;
  };
  std::stable_sort(items_.begin(), items_.end(), [&](const auto& a, const auto& b) {
    return context(a) > context(b);
  });
}

template <typename T>
StepPacker::Array StepPacker::Place(int64_t count) {
  const Array array = {.offset = bytes_, .count = count};
  bytes_ = RoundUp(bytes_ + count * int64_t{sizeof(T)}, kArrayAlignment);
  return array;
}

int64_t StepPacker::Plan(const StepInputs& host) {
  Classify(host);
  CollectItems(host);
  bytes_ = 0;
  const int64_t seqs = step_.shape.num_seqs;
  const int64_t tokens = step_.is_decode_only ? seqs : host.num_tokens;
  const int64_t logits = step_.is_decode_only ? seqs : host.num_logits;
  token_ids_ = Place<TokenId>(tokens);
  positions_ = Place<int32_t>(tokens);
  slots_ = Place<int64_t>(tokens);
  query_start_ = Place<int32_t>(seqs + 1);
  seq_lens_ = Place<int32_t>(seqs);
  const bool reads_windows = step_.shape.reads_windows;
  tables_ = Place<BlockId>(reads_windows ? 0 : seqs * step_.shape.max_blocks_per_seq);
  first_places_ = Place<int64_t>(reads_windows ? seqs : 0);
  logits_ = Place<int32_t>(logits);
  decode_index_ = Place<int32_t>(step_.is_decode_only ? 0 : step_.num_decodes);
  item_list_ = Place<gpu::PrefillItem>(static_cast<int64_t>(items_.size()));
  return bytes_;
}

void StepPacker::WriteBlocks(const StepInputs& host, std::byte* bytes) const {
  if (step_.shape.reads_windows) {
    Fill(bytes,
         first_places_.offset,
         first_places_.count,
         host.first_places,
         host.num_seqs,
         int64_t{0});
    return;
  }
  auto* tables = reinterpret_cast<BlockId*>(bytes + tables_.offset);
  std::fill_n(tables, tables_.count, kNullBlockId);
  for (int64_t seq = 0; seq < host.num_seqs; ++seq) {
    std::copy_n(host.block_tables + seq * host.max_blocks_per_seq,
                host.max_blocks_per_seq,
                tables + seq * step_.shape.max_blocks_per_seq);
  }
}

PackedStep StepPacker::Write(const StepInputs& host, std::byte* bytes, void* destination) {
  Fill(bytes, token_ids_.offset, token_ids_.count, host.token_ids, host.num_tokens, TokenId{0});
  Fill(bytes, positions_.offset, positions_.count, host.positions, host.num_tokens, 0);
  Fill(bytes, slots_.offset, slots_.count, host.slot_mapping, host.num_tokens, int64_t{-1});
  Fill(bytes, seq_lens_.offset, seq_lens_.count, host.seq_lens, host.num_seqs, 0);
  Fill(bytes, logits_.offset, logits_.count, host.logits_rows, host.num_logits, 0);
  Fill(bytes, query_start_.offset, query_start_.count, host.query_start, host.num_seqs + 1, 0);
  auto* query_start = reinterpret_cast<int32_t*>(bytes + query_start_.offset);
  auto* logits_rows = reinterpret_cast<int32_t*>(bytes + logits_.offset);
  for (int32_t seq = host.num_seqs; seq < step_.shape.num_seqs; ++seq) {
    query_start[seq + 1] = seq + 1;
    logits_rows[seq] = seq;
  }
  WriteBlocks(host, bytes);
  if (!step_.is_decode_only) {
    std::copy(
        decodes_.begin(), decodes_.end(), reinterpret_cast<int32_t*>(bytes + decode_index_.offset));
    step_.decode_seq_index = At<int32_t>(destination, decode_index_.offset);
  }
  std::copy(
      items_.begin(), items_.end(), reinterpret_cast<gpu::PrefillItem*>(bytes + item_list_.offset));
  step_.items = At<gpu::PrefillItem>(destination, item_list_.offset);
  step_.num_items = static_cast<int32_t>(items_.size());
  step_.inputs = {.num_tokens = static_cast<int32_t>(token_ids_.count),
                  .num_seqs = step_.shape.num_seqs,
                  .num_logits = static_cast<int32_t>(logits_.count),
                  .max_blocks_per_seq = step_.shape.max_blocks_per_seq,
                  .token_ids = At<TokenId>(destination, token_ids_.offset),
                  .positions = At<int32_t>(destination, positions_.offset),
                  .slot_mapping = At<int64_t>(destination, slots_.offset),
                  .query_start = At<int32_t>(destination, query_start_.offset),
                  .seq_lens = At<int32_t>(destination, seq_lens_.offset),
                  .block_tables = At<BlockId>(destination, tables_.offset),
                  .first_places = step_.shape.reads_windows
                                      ? At<int64_t>(destination, first_places_.offset)
                                      : nullptr,
                  .logits_rows = At<int32_t>(destination, logits_.offset)};
  return step_;
}

}  // namespace quire
