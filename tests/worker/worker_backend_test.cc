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
