// Swapping, and windows, on the GPU backend, emulated. There copies begin as early and end as late
// as events let them, and what touches their blocks meanwhile is a fault; so is a kernel that reads
// a place which shows nothing, or has been mapped anew before it runs (kernels/cuda/emulator). The
// same plans give the same tokens as when each copy is waited for, and as through block tables.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "common/json/json.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"
#include "tests/worker/model/random_model.h"
#include "tests/worker/runtime/swap_traffic.h"
#include "worker/runtime/step_executor.h"

namespace quire {
namespace {

constexpr KvCacheBudget Budget(KvBackend backend) {
  return {.bytes = 64 << 20,
          .swap_space_bytes = 64 << 20,
          .num_blocks_override = 0,
          .backend = backend};
}

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

// The library with copies that are done when their call returns.
gpu::GpuApi WithCopiesAtOnce(const gpu::GpuApi& api) {
  static const gpu::GpuApi& below = api;
  gpu::GpuApi at_once = api;
  at_once.copy_to_device = [](void* to, const void* from, size_t bytes, gpu::Stream stream) {
    const int error = below.copy_to_device(to, from, bytes, stream);
    return error != 0 ? error : below.synchronize(stream);
  };
  at_once.copy_many = [](void* const* to,
                         const void* const* from,
                         const size_t* bytes,
                         size_t count,
                         gpu::Stream stream) {
    const int error = below.copy_many(to, from, bytes, count, stream);
    return error != 0 ? error : below.synchronize(stream);
  };
  return at_once;
}

enum class Copies : uint8_t { kAtOnce, kLate };

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
  }

  std::vector<std::vector<TokenId>> Answers(const SwapTrafficOptions& options,
                                            Copies copies,
                                            int32_t device = 0,
                                            KvBackend kv_backend = KvBackend::kPaged) {
    auto library = GpuLibrary::Open("emu", device);
    EXPECT_TRUE(library.ok()) << library.status();
    const gpu::GpuApi at_once = WithCopiesAtOnce(library->api());
    const gpu::GpuApi& api = copies == Copies::kAtOnce ? at_once : library->api();
    auto backend = CreateGpuBackend(GpuLibrary(api, library->device()), {});
    EXPECT_TRUE(backend.ok()) << backend.status();
    auto model = LoadModel(dir_.path(), **backend, nullptr);
    EXPECT_TRUE(model.ok()) << model.status();
    StepExecutor executor(**model, **backend, Budget(kv_backend));
    std::vector<std::vector<TokenId>> answers;
    std::thread([&] {  // as in the worker
      executor.BindThread();
      SwapTraffic traffic(executor, DType::kBF16, options);
      answers = traffic.Run();
      num_swapped_out_ += traffic.num_swapped_out();
      num_steps_ahead_ += traffic.num_steps_ahead();
    })
        .join();
    return answers;
  }

  ModelDir dir_;
  int num_swapped_out_ = 0;
  int num_steps_ahead_ = 0;
};

TEST_F(GpuSwapTest, AnswersDoNotDependOnWhenCopiesTakePlace) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    EXPECT_EQ(Answers(Options(seed), Copies::kLate), Answers(Options(seed), Copies::kAtOnce));
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
  const auto answers = Answers(options, Copies::kLate);
  ASSERT_GT(answers[0].size(), 20U);
  EXPECT_EQ(answers, Answers(options, Copies::kAtOnce));
}

TEST_F(GpuSwapTest, WindowsGiveTheAnswersOfBlockTables) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    SwapTrafficOptions options = Options(seed);
    options.max_slice_tokens = seed % 2 == 0 ? 3 : options.max_slice_tokens;  // many sample nothing
    for (const int32_t device : {0, 1}) {
      EXPECT_EQ(Answers(options, Copies::kLate, device, KvBackend::kVmm),
                Answers(options, Copies::kLate));
    }
  }
  EXPECT_GT(num_swapped_out_, 50);
}

// All memory and streams must be on the chosen device, whichever thread makes them.
TEST_F(GpuSwapTest, AnotherDeviceGivesTheSameAnswers) {
  EXPECT_EQ(Answers(Options(3), Copies::kLate, /*device=*/1),
            Answers(Options(3), Copies::kLate, /*device=*/0));
  EXPECT_GT(num_swapped_out_, 0);
}

}  // namespace
}  // namespace quire
