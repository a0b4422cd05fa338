#include <algorithm>
#include <vector>

#include "tests/gpu/bench_attention.h"

namespace quire::gpu {
namespace {

std::vector<PrefillItem> ItemsOf(const AttentionBatch& batch, int32_t only_sequence) {
  const int32_t group = batch.shape().num_heads / batch.shape().num_kv_heads;
  std::vector<PrefillItem> items;
  for (size_t s = 0; s < batch.sequences().size(); ++s) {
    const auto sequence = static_cast<int32_t>(s);
    const int32_t rows = batch.sequences()[s].query_len * group;
    const bool wanted = only_sequence < 0 || only_sequence == sequence;
    for (int32_t row = 0; wanted && row < rows; row += kPrefillRows) {
      items.push_back({.sequence = sequence, .first_row = row});
    }
  }
  auto context = [&](const PrefillItem& item) {
    const SequenceLengths& lengths = batch.sequences()[static_cast<size_t>(item.sequence)];
    return lengths.seq_len - lengths.query_len + item.first_row / group;
  };
  std::stable_sort(items.begin(), items.end(), [&](const PrefillItem& a, const PrefillItem& b) {
    return context(a) > context(b);
  });
  return items;
}

}  // namespace

PrefillScratch::PrefillScratch(const AttentionBatch& batch, const PrefillOptions& options)
    : items_(0), next_item_(Buffer::Of(std::vector<int32_t>{0})) {
  const std::vector<PrefillItem> items = ItemsOf(batch, options.only_sequence);
  items_ = Buffer::Of(items);
  plan_.items = items_.as<PrefillItem>();
  plan_.num_items = static_cast<int32_t>(items.size());
  plan_.kernel = options.kernel;
  plan_.next_item = next_item_.as<int32_t>();
  plan_.num_ctas = options.num_ctas;
}

}  // namespace quire::gpu
