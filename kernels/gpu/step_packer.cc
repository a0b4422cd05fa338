#include "kernels/gpu/step_packer.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/math.h"

namespace quire {
namespace {

constexpr int64_t kArrayAlignment = 16;

// Copies from[0, given) to the array of `count` elements at `offset`, and fills the rest with
// `padding`.
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

bool StepPacker::Decodes(const StepInputs& host, int32_t seq, int64_t max_partial_bytes) const {
  const int32_t query_tokens = QueryLen(host, seq);
  if (query_tokens == 1) {
    return !shape_.prefills_single_tokens || host.begins_in_prompt == nullptr ||
           host.begins_in_prompt[seq] == 0;
  }
  return query_tokens <= shape_.lines.max_query_tokens &&
         PartialBytes(WorkOf(host.seq_lens[seq], query_tokens, shape_), shape_) <=
             max_partial_bytes;
}

void StepPacker::Classify(const StepInputs& host, int64_t max_partial_bytes) {
  decodes_.clear();
  prefills_.clear();
  step_ = {};
  for (int32_t seq = 0; seq < host.num_seqs; ++seq) {
    (Decodes(host, seq, max_partial_bytes) ? decodes_ : prefills_).push_back(seq);
  }
  const auto past_single = std::stable_partition(
      decodes_.begin(), decodes_.end(), [&](int32_t seq) { return QueryLen(host, seq) == 1; });
  step_.is_decode_only = pad_decodes_ && host.num_seqs > 0 &&
                         std::cmp_equal(past_single - decodes_.begin(), host.num_seqs) &&
                         host.num_logits == host.num_seqs;
  num_seqs_ = step_.is_decode_only ? DecodeBucket(host.num_seqs) : host.num_seqs;
  for (int32_t seq = host.num_seqs; seq < num_seqs_; ++seq) {
    decodes_.push_back(seq);
  }
  step_.num_decodes = static_cast<int32_t>(decodes_.size());
}

void StepPacker::Group(const StepInputs& host, int64_t max_partial_bytes) {
  DecodeWork of_last;  // of the last group
  for (int32_t decode = 0; decode < step_.num_decodes; ++decode) {
    const int32_t seq = decodes_[static_cast<size_t>(decode)];
    const DecodeWork more = seq < host.num_seqs
                                ? WorkOf(host.seq_lens[seq], QueryLen(host, seq), shape_)
                                : DecodeWork{};
    const bool is_other_kind = more.query_tokens > 1 && of_last.query_tokens == 1;
    of_last = Join(of_last, more);
    if (step_.groups.empty() || is_other_kind ||
        PartialBytes(of_last, shape_) > max_partial_bytes) {
      step_.groups.push_back({.first = decode});
      of_last = more;
    }
    ++step_.groups.back().count;
    step_.groups.back().max_query_tokens = of_last.query_tokens;
  }
  step_.is_replayable = step_.is_decode_only && step_.groups.size() == 1 && !host.shares_new_tokens;
}

void StepPacker::CollectItems(const StepInputs& host) {
  items_.clear();
  for (const int32_t seq : prefills_) {
    const int32_t rows = QueryLen(host, seq) * shape_.num_queries_per_kv_head();
    for (int32_t row = 0; row < rows; row += gpu::kPrefillRows) {
      items_.push_back({.sequence = seq, .first_row = row});
    }
  }
  // Sorts the items by the number of tokens before an item's first row, most tokens first.
  // Otherwise an item with a long context could start last and run alone at the end. An item's own
  // rows add little and are ignored.
  auto context = [&](const gpu::PrefillItem& item) {
    return host.seq_lens[item.sequence] - QueryLen(host, item.sequence) +
           item.first_row / shape_.num_queries_per_kv_head();
  };
  std::stable_sort(items_.begin(), items_.end(), [&](const auto& a, const auto& b) {
    return context(a) > context(b);
  });
}

StepPacker::Layout StepPacker::LayOut(const Counts& counts) {
  Layout at;
  const auto place = [&at]<typename T>(int64_t count, T /*element*/) {
    const Array array = {.offset = at.bytes, .count = count};
    at.bytes = RoundUp(at.bytes + count * int64_t{sizeof(T)}, kArrayAlignment);
    return array;
  };
  at.token_ids = place(counts.tokens, TokenId{});
  at.positions = place(counts.tokens, int32_t{});
  at.slots = place(counts.tokens, int64_t{});
  at.query_start = place(counts.seqs + 1, int32_t{});
  at.seq_lens = place(counts.seqs, int32_t{});
  at.first_places = place(counts.first_places, int64_t{});
  at.logits = place(counts.logits, int32_t{});
  at.decode_index = place(counts.decodes, int32_t{});
  at.items = place(counts.items, gpu::PrefillItem{});
  at.extra = place(counts.extra_bytes, std::byte{});
  at.tables = place(counts.table_entries, BlockId{});
  return at;
}

// Takes the largest value of each count. Counts both block tables and first places, although a step
// has only one of the two.
int64_t StepPacker::MaxBytes(const StepBounds& bounds, int32_t num_queries_per_kv_head) {
  const int64_t seqs = DecodeBucket(bounds.max_seqs);
  const int64_t tokens = std::max<int64_t>(bounds.max_tokens, seqs);
  return LayOut({.tokens = tokens,
                 .seqs = seqs,
                 .table_entries = seqs * bounds.max_blocks_per_seq,
                 .first_places = seqs,
                 .logits = tokens,
                 .decodes = seqs,
                 .items = seqs + tokens * num_queries_per_kv_head / gpu::kPrefillRows})
      .bytes;
}

// A group has one element more than it has decodes, and a step has at most as many groups as
// decodes. So two elements per decode suffice.
int64_t StepPacker::MaxSplitStarts(const StepBounds& bounds) {
  return int64_t{2} * DecodeBucket(bounds.max_seqs);
}

int64_t StepPacker::Plan(const StepInputs& host,
                         int64_t max_partial_bytes,
                         int64_t num_extra_bytes) {
  Classify(host, max_partial_bytes);
  Group(host, max_partial_bytes);
  CollectItems(host);
  const int64_t seqs = num_seqs_;
  const bool reads_windows = host.first_places != nullptr;
  at_ = LayOut({.tokens = step_.is_decode_only ? seqs : host.num_tokens,
                .seqs = seqs,
                .table_entries = reads_windows ? 0 : seqs * host.max_blocks_per_seq,
                .first_places = reads_windows ? seqs : 0,
                .logits = step_.is_decode_only ? seqs : host.num_logits,
                .decodes = step_.is_replayable ? 0 : step_.num_decodes,
                .items = static_cast<int64_t>(items_.size()),
                .extra_bytes = num_extra_bytes});
  return at_.bytes;
}

void StepPacker::WriteBlocks(const StepInputs& host, std::byte* bytes) const {
  if (host.first_places != nullptr) {
    Fill(bytes,
         at_.first_places.offset,
         at_.first_places.count,
         host.first_places,
         host.num_seqs,
         int64_t{0});
    return;
  }
  Fill(bytes,
       at_.tables.offset,
       at_.tables.count,
       host.block_tables,
       int64_t{host.num_seqs} * host.max_blocks_per_seq,
       kNullBlockId);
}

PackedStep StepPacker::Write(const StepInputs& host, std::byte* bytes, void* destination) {
  Fill(bytes,
       at_.token_ids.offset,
       at_.token_ids.count,
       host.token_ids,
       host.num_tokens,
       TokenId{0});
  Fill(bytes, at_.positions.offset, at_.positions.count, host.positions, host.num_tokens, 0);
  Fill(bytes, at_.slots.offset, at_.slots.count, host.slot_mapping, host.num_tokens, int64_t{-1});
  Fill(bytes, at_.seq_lens.offset, at_.seq_lens.count, host.seq_lens, host.num_seqs, 0);
  Fill(bytes, at_.logits.offset, at_.logits.count, host.logits_rows, host.num_logits, 0);
  Fill(
      bytes, at_.query_start.offset, at_.query_start.count, host.query_start, host.num_seqs + 1, 0);
  auto* query_start = reinterpret_cast<int32_t*>(bytes + at_.query_start.offset);
  auto* logits_rows = reinterpret_cast<int32_t*>(bytes + at_.logits.offset);
  for (int32_t seq = host.num_seqs; seq < num_seqs_; ++seq) {
    query_start[seq + 1] = seq + 1;
    logits_rows[seq] = seq;
  }
  WriteBlocks(host, bytes);
  if (!step_.is_replayable) {
    std::copy(decodes_.begin(),
              decodes_.end(),
              reinterpret_cast<int32_t*>(bytes + at_.decode_index.offset));
    step_.decode_seq_index = At<int32_t>(destination, at_.decode_index.offset);
  }
  std::copy(
      items_.begin(), items_.end(), reinterpret_cast<gpu::PrefillItem*>(bytes + at_.items.offset));
  step_.extra = bytes + at_.extra.offset;
  step_.extra_at_destination = At<std::byte>(destination, at_.extra.offset);
  step_.items = At<gpu::PrefillItem>(destination, at_.items.offset);
  step_.num_items = static_cast<int32_t>(items_.size());
  step_.inputs = {.num_tokens = static_cast<int32_t>(at_.token_ids.count),
                  .num_seqs = num_seqs_,
                  .num_logits = static_cast<int32_t>(at_.logits.count),
                  .max_blocks_per_seq = host.max_blocks_per_seq,
                  .shares_new_tokens = host.shares_new_tokens,
                  .token_ids = At<TokenId>(destination, at_.token_ids.offset),
                  .positions = At<int32_t>(destination, at_.positions.offset),
                  .slot_mapping = At<int64_t>(destination, at_.slots.offset),
                  .query_start = At<int32_t>(destination, at_.query_start.offset),
                  .seq_lens = At<int32_t>(destination, at_.seq_lens.offset),
                  .block_tables = At<BlockId>(destination, at_.tables.offset),
                  .first_places = (host.first_places != nullptr)
                                      ? At<int64_t>(destination, at_.first_places.offset)
                                      : nullptr,
                  .logits_rows = At<int32_t>(destination, at_.logits.offset)};
  return step_;
}

}  // namespace quire
