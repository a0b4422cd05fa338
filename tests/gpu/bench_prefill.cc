// Paged attention of one layer, prefill. It is bound by products. Products that the causal mask
// hides, about half, are not counted.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/bench_attention.h"
#include "tests/gpu/peer_library.h"

namespace quire::gpu {
namespace {

struct PrefillCase {
  AttentionShape shape;
  int32_t batch = 1;
  int32_t chunk = 2048;
  int32_t context = 0;

  std::string Name() const {
    return shape.Name() + ", " + std::to_string(batch) + " x " + std::to_string(chunk) + " after " +
           std::to_string(context);
  }
};

void Measure(Bench& bench, KvPool& pool, const PrefillCase& prefill) {
  if (!bench.IsWantedCase(prefill.Name())) {
    return;
  }
  const std::vector<SequenceLengths> sequences(
      static_cast<size_t>(prefill.batch),
      {.query_len = prefill.chunk, .seq_len = prefill.context + prefill.chunk});
  auto batch = AttentionBatch::Make(bench, pool, prefill.shape, sequences);
  if (!batch.has_value()) {
    bench.report().Say("  " + prefill.Name() + ": not enough memory");
    return;
  }
  AttentionInTurn in_turn(bench, *batch, "prefill", prefill.Name());
  for (const PrefillChoice& choice : kPrefillChoices) {
    if (IsChosen(bench.options().prefill_kernels, choice)) {
      in_turn.AddPrefill(choice);
    }
  }
  in_turn.AddPeer(kPeerOfPrefill);
  in_turn.Measure([&](Figure& figure) {
    figure.Param("batch", prefill.batch).Param("chunk", prefill.chunk);
    figure.Param("context", prefill.context);
    figure.work = batch->LeastWork();
  });
}

std::vector<PrefillCase> PrefillCases(const Bench& bench) {
  const AttentionShape shape;
  if (bench.rehearse()) {
    return {{{.num_heads = 4, .num_kv_heads = 2, .head_dim = 64}, 2, 40, 24}};
  }
  if (bench.quick()) {
    return {{shape, 1, 2048, 0}, {shape, 1, 8192, 0}};
  }
  std::vector<PrefillCase> cases;
  for (const int32_t context : {0, 8192, 32768}) {
    for (const int32_t chunk : {8192, 2048, 512}) {
      cases.push_back({shape, 1, chunk, context});
    }
  }
  cases.push_back({shape, 16, 512, 0});
  for (const auto& [heads, kv_heads] : {std::pair(64, 8), std::pair(28, 4), std::pair(32, 32)}) {
    const AttentionShape other = {.num_heads = heads, .num_kv_heads = kv_heads};
    cases.push_back({other, 1, 8192, 0});
    cases.push_back({other, 1, 2048, 8192});
  }
  for (const int32_t head_dim : {64, 96, 256}) {
    const AttentionShape other = {.head_dim = head_dim};
    cases.push_back({other, 1, 8192, 0});
  }
  const AttentionShape block_64 = {.block_size_tokens = 64};
  const AttentionShape e4m3 = {.cache_dtype = DType::kF8E4M3};
  cases.push_back({block_64, 1, 8192, 0});
  cases.push_back({e4m3, 1, 8192, 0});
  return cases;
}

}  // namespace

void MeasurePrefill(Bench& bench) {
  KvPool pool(bench);
  for (const PrefillCase& prefill : PrefillCases(bench)) {
    if (bench.IsOutOfTime()) {
      return;
    }
    Measure(bench, pool, prefill);
  }
}

}  // namespace quire::gpu
