// The bits of decode by lines, for each type and head_dim: they depend on the sequence alone, not
// on the grid, the order in which CTAs run, the other sequences, or the graph that repeats the
// call.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/chosen_cta_rules.h"
#include "tests/kernels/cuda/line_decode.h"
#include "tests/kernels/cuda/line_types.h"

namespace quire::gpu {
namespace {

using emulator::CtaOrder;

constexpr uint8_t kBefore =
    0x5A;  // the output's bytes before the call: not a NaN, which folds give

// Decodes under the emulator's watch of writes. Runs the call twice if a graph repeats it.
std::vector<uint16_t> WatchedBits(const AttentionData& data,
                                  int32_t num_ctas,
                                  CtaOrder order,
                                  bool in_graph = false) {
  const ChosenCtaRules rules({.order = order, .seed = 5, .watches_memory = true});
  DeviceAttention device(data);
  const PagedAttentionParams& params = device.params();
  const DType dtype = data.problem().dtype;
  LineDecode decode(params,
                    {.num_ctas = num_ctas, .max_query_tokens = MaxQueryTokens(data.problem())});
  const size_t bytes = data.OutWidth() * static_cast<size_t>(data.num_tokens()) * sizeof(uint16_t);
  Stream stream = nullptr;
  Graph graph = nullptr;
  EXPECT_EQ(CreateStream(&stream), 0);
  if (in_graph) {
    EXPECT_EQ(BeginGraph(stream), 0);
    decode.Run(params, dtype, stream);
    EXPECT_EQ(EndGraph(stream, &graph), 0);
  }
  for (int i = 0; i < (in_graph ? 2 : 1); ++i) {
    EXPECT_EQ(FillBytes(params.out, kBefore, bytes, stream), 0);
    if (in_graph) {
      EXPECT_EQ(LaunchGraph(graph, stream), 0);
    } else {
      decode.Run(params, dtype, stream);
    }
  }
  EXPECT_EQ(Synchronize(stream), 0);
  decode.ExpectNoArrivals();
  if (in_graph) {
    EXPECT_EQ(DestroyGraph(graph), 0);
  }
  EXPECT_EQ(DestroyStream(stream), 0);
  return device.Out();
}

class DecodeLinesBitsTest : public TypesAndSizeTest {
 protected:
  // Lines of 16 rows and, with 9 queries of 3 heads, of 32. Sequences of one to five segments.
  std::vector<AttentionProblem> Problems() const {
    AttentionProblem decodes = Problem();
    decodes.num_heads = 6;
    decodes.sequences = SequencesOf({1, 300, 64, 65, 0, 257, 17});
    AttentionProblem several = Problem();
    several.num_heads = 3;
    several.num_kv_heads = 1;
    several.sliding_window = 150;
    several.soft_cap = 5.0F;
    several.sinks = {0.5F, -1.0F, 2.0F};
    several.sequences = {{.query_len = 9, .seq_len = 200, .key = 1},
                         {.query_len = 1, .seq_len = 130, .key = 2},
                         {.query_len = 4, .seq_len = 67, .key = 3}};
    return {decodes, several};
  }
};

TEST_P(DecodeLinesBitsTest, NeitherTheGridNorTheOrderOfCtasNorAGraphChangesTheBits) {
  for (const AttentionProblem& problem : Problems()) {
    const AttentionData data(problem);

    const std::vector<uint16_t> expected = WatchedBits(data, 1, CtaOrder::kForward);

    EXPECT_EQ(WatchedBits(data, 2, CtaOrder::kBackward), expected);
    EXPECT_EQ(WatchedBits(data, 5, CtaOrder::kForward), expected);
    EXPECT_EQ(WatchedBits(data, 9, CtaOrder::kShuffled), expected);
    EXPECT_EQ(WatchedBits(data, 7, CtaOrder::kBackward, true), expected);
  }
}

TEST_P(DecodeLinesBitsTest, ASequenceHasTheSameBitsAloneAndInCompany) {
  for (const AttentionProblem& problem : Problems()) {
    const AttentionData company(problem);
    const std::vector<uint16_t> together = WatchedBits(company, 4, CtaOrder::kShuffled);
    for (size_t s = 0; s < problem.sequences.size(); ++s) {
      AttentionProblem only = problem;
      only.sequences = {problem.sequences[s]};
      const AttentionData alone(only);

      EXPECT_EQ(WatchedBits(alone, 3, CtaOrder::kForward), RowsOf(company, together, s)) << s;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DecodeLinesBitsTest, AllTypesAndSizes(), NameOfTypesAndSize);

}  // namespace
}  // namespace quire::gpu
