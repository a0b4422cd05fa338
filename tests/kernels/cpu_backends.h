// The CPU backends that this machine can run, for tests that hold on each of them.
#ifndef QUIRE_TESTS_KERNELS_CPU_BACKENDS_H_
#define QUIRE_TESTS_KERNELS_CPU_BACKENDS_H_

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/cpu_backend.h"

namespace quire {

// Null when the machine lacks the instruction set.
inline std::unique_ptr<KernelBackend> MakeCpuBackend(const std::string& isa, int num_threads) {
  CpuBackendOptions options;
  options.num_threads = num_threads;
  options.isa = isa;
  auto backend = CreateCpuBackend(options);
  if (backend.ok()) {
    return std::move(*backend);
  }
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition) << backend.status();
  return nullptr;
}

// Parameterised by the instruction set. A path that this machine lacks is reported as skipped.
class CpuBackendTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (MakeCpuBackend(GetParam(), 1) == nullptr) {
      GTEST_SKIP() << "this machine lacks " << GetParam();
    }
  }

  std::unique_ptr<KernelBackend> MakeBackend(int num_threads) {
    return MakeCpuBackend(GetParam(), num_threads);
  }
};

inline std::vector<std::string> CpuIsas() { return {"avx512", "avx2", "portable"}; }

// Whether the backend rounds inputs to bf16 in products of bf16 weights, and in attention from a
// bf16 cache.
inline bool RoundsToBF16(const std::string& isa) { return isa == "amx" || isa == "avx512bf16"; }

inline std::string IsaName(const testing::TestParamInfo<std::string>& info) { return info.param; }

}  // namespace quire

#endif  // QUIRE_TESTS_KERNELS_CPU_BACKENDS_H_
