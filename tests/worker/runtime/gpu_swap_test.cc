// Swapping on the GPU backend, on streams that run in every order that CUDA allows: the same plans
// give the same tokens as on streams that do everything at once.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/json/json.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"
#include "tests/kernels/gpu/reordering_api.h"
#include "tests/worker/model/random_model.h"
#include "tests/worker/runtime/swap_traffic.h"
#include "worker/runtime/step_executor.h"

namespace quire {
namespace {

constexpr KvCacheBudget kBudget = {
    .bytes = 64 << 20, .swap_space_bytes = 64 << 20, .num_blocks_override = 0};

// Blocks are used again while swaps of them are under way: the worker has to put things in order.
SwapTrafficOptions Options(uint64_t seed) {
  SwapTrafficOptions options = {.seed = seed};
  options.num_sequences = 4;
  options.num_blocks = 12;
  options.num_host_blocks = 10;
  options.block_size_tokens = 8;
  options.num_output_tokens = 8;
  options.swap_out_one_in = 4;
  options.waits_for_swaps = false;
  return options;
}

class GpuSwapTest : public testing::Test {
 protected:
  GpuSwapTest() {
    const Json config = {{"architectures", {"LlamaForCausalLM"}},
                         {"vocab_size", 96},
                         {"hidden_size", 64},
                         {"intermediate_size", 64},
                         {"num_hidden_layers", 2},
                         {"num_attention_heads", 2},
                         {"num_key_value_heads", 1},
                         {"head_dim", 64},
                         {"rms_norm_eps", 1e-5},
                         {"max_position_embeddings", 256},
                         {"torch_dtype", "bfloat16"}};
    WriteRandomModel(config, /*seed=*/3, &dir_);
    auto library = GpuLibrary::Open("emu", 0);
    EXPECT_TRUE(library.ok()) << library.status();
    library_ = std::make_unique<GpuLibrary>(*library);
  }

  std::vector<std::vector<TokenId>> Answers(const gpu::GpuApi& api,
                                            const SwapTrafficOptions& options) {
    auto backend = CreateGpuBackend(GpuLibrary(api, library_->device()), {});
    EXPECT_TRUE(backend.ok()) << backend.status();
    auto model = LoadModel(dir_.path(), **backend, nullptr);
    EXPECT_TRUE(model.ok()) << model.status();
    StepExecutor executor(**model, **backend, kBudget);
    SwapTraffic traffic(executor, DType::kBF16, options);
    auto answers = traffic.Run();
    num_swapped_out_ += traffic.num_swapped_out();
    num_steps_ahead_ += traffic.num_steps_ahead();
    return answers;
  }

  ModelDir dir_;
  std::unique_ptr<GpuLibrary> library_;
  int num_swapped_out_ = 0;
  int num_steps_ahead_ = 0;
};

TEST_F(GpuSwapTest, AnswersDoNotDependOnTheOrderOfStreams) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const auto expected = Answers(library_->api(), Options(seed));
    for (const StreamOrder order :
         {StreamOrder::kCopiesLate, StreamOrder::kCopiesEarly, StreamOrder::kRandom}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", order " << static_cast<int>(order));
      const ReorderingApi reordering(library_->api(), order, seed);
      EXPECT_EQ(Answers(reordering.api(), Options(seed)), expected);
    }
  }
  EXPECT_GT(num_swapped_out_, 50);
  EXPECT_GT(num_steps_ahead_, 50);
}

// Steps that sample nothing wait for nothing: the inputs of many are on their way at once.
TEST_F(GpuSwapTest, InputsStayUntilTheyAreRead) {
  SwapTrafficOptions options = Options(11);
  options.num_sequences = 1;
  options.max_slice_tokens = 1;
  options.swap_out_one_in = 0;
  const auto expected = Answers(library_->api(), options);
  ASSERT_GT(expected[0].size(), 20U);
  const ReorderingApi reordering(library_->api(), StreamOrder::kCopiesEarly, /*seed=*/1);
  EXPECT_EQ(Answers(reordering.api(), options), expected);
}

}  // namespace
}  // namespace quire
