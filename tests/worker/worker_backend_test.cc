#include "worker/worker_backend.h"

#include <cstdlib>

#include "gtest/gtest.h"

#include "kernels/reference/reference_backend.h"
#include "tests/worker/runtime/late_backend.h"

namespace quire {
namespace {

class BackendWithoutPages : public LateBackend {
 public:
  BackendWithoutPages() : LateBackend(CreateReferenceBackend()) {}
  int64_t window_page_bytes() const override { return 0; }
};

TEST(CheckKvBackendTest, WindowsNeedMemoryThatCanBeMapped) {
  WorkerConfig windows;
  windows.kv_cache.backend = KvBackend::kVmm;
  const BackendWithoutPages without_pages;

  EXPECT_TRUE(CheckKvBackend({}, without_pages).ok());
  EXPECT_TRUE(CheckKvBackend(windows, *CreateReferenceBackend()).ok());
  EXPECT_EQ(CheckKvBackend(windows, without_pages).message(),
            "--kv-backend: vmm: this device cannot map KV blocks into virtual memory, or "
            "quire_cuda.so was built with a CUDA toolkit before 12.5");
}

ModelConfig SmallModel() {
  ModelConfig model;
  model.hidden_size = model.embedding_dim = 64;
  model.head_dim = 16;
  return model;
}

TEST(CheckQuantizationTest, RanksWithPartsOfGroupsAreRefused) {
  WorkerConfig int8;
  int8.cpu_quantization = CpuQuantization::kInt8;
  const RankShare fits = {.heads = {.begin = 0, .count = 4},
                          .intermediate = {.begin = 0, .count = 96}};
  RankShare narrow = fits;
  narrow.intermediate.count = 48;

  EXPECT_TRUE(CheckQuantization(int8, SmallModel(), fits).ok());
  EXPECT_TRUE(CheckQuantization({}, SmallModel(), narrow).ok());
  EXPECT_EQ(CheckQuantization(int8, SmallModel(), narrow).message(),
            "--quantization: weights are rounded in groups, so the part of intermediate_size of a "
            "rank must be a multiple of 32 (got 48); start without this flag");
}

TEST(CheckQuantizationTest, QuantizedWeightsAreNotRoundedAgain) {
  WorkerConfig int4;
  int4.cpu_quantization = CpuQuantization::kInt4;
  WorkerConfig fp8;
  fp8.gpu.quantization = GpuQuantization::kFp8;
  ModelConfig model = SmallModel();
  model.quantization.groups = {{.scheme = {.bits = 4}}};

  for (const WorkerConfig& config : {int4, fp8}) {
    EXPECT_EQ(CheckQuantization(config, model, {}).message(),
              "--quantization: the model's weights are quantized already (quantization_config), so "
              "start without this flag");
  }
  EXPECT_TRUE(CheckQuantization({}, model, {}).ok());
}

// A step may run once with a graph and once without.
TEST(CreateBackendTest, NcclAddsInOneOrderInGraphsAndOutside) {
  ::setenv("NCCL_GRAPH_REGISTER", "1", /*overwrite=*/1);
  WorkerConfig config;
  config.device = WorkerDevice::kEmulated;
  static_cast<void>(CreateBackend(config));
  EXPECT_STREQ(::getenv("NCCL_GRAPH_REGISTER"), "0");
}

}  // namespace
}  // namespace quire
