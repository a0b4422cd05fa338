// The faults that the emulator reports, each with the line of the kernel that made it.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/tensor_core.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warp.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/support/sanitizer.h"

namespace quire::gpu {
namespace {

QUIRE_KERNEL void Nothing() {}

struct SeenFault {
  emulator::FaultKind kind;
  std::string kernel;
  uint32_t cta;
  uint32_t thread;
  std::string file;
  int line;
  std::string text;
};
std::vector<SeenFault> seen_faults;  // of the running test

void RecordFault(const emulator::Fault& fault) {
  seen_faults.push_back(SeenFault{fault.kind,
                                  fault.kernel,
                                  fault.cta.x,
                                  fault.thread.x,
                                  fault.at.file,
                                  fault.at.line,
                                  fault.text});
}

class FaultTest : public ::testing::Test {
 protected:
  FaultTest() : former_(emulator::SetFaultHandler(&RecordFault)) { seen_faults.clear(); }
  ~FaultTest() override { emulator::SetFaultHandler(former_); }

  // The one fault of a launch that returned error.
  static void ExpectFault(
      int error, emulator::FaultKind kind, const std::string& kernel, uint32_t thread, int line) {
    EXPECT_EQ(error, emulator::kErrorLaunchFailure);
    ASSERT_EQ(seen_faults.size(), 1u);
    const SeenFault& fault = seen_faults[0];
    EXPECT_EQ(fault.kind, kind) << fault.text;
    EXPECT_EQ(fault.kernel, kernel);
    EXPECT_EQ(fault.thread, thread) << fault.text;
    EXPECT_EQ(fault.line, line) << fault.text;
    EXPECT_TRUE(fault.file.ends_with("emulator_fault_test.cc")) << fault.file;
    EXPECT_NE(fault.text.find(kernel), std::string::npos) << fault.text;
    EXPECT_NE(fault.text.find("emulator_fault_test.cc:" + std::to_string(line)), std::string::npos)
        << fault.text;
    // The emulator still works after the fault.
    EXPECT_EQ(QUIRE_LAUNCH(Nothing, dim3(2), dim3(64), 0, nullptr), 0);
  }

 private:
  emulator::FaultHandler former_;
};

constexpr int kDivergentBarrierLine = __LINE__ + 6;
QUIRE_KERNEL void BarrierInBothBranches() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    // The first warp waits above.
    __syncthreads();
  }
}

TEST_F(FaultTest, ABarrierInEachOfTwoBranchesIsReported) {
  const int error = QUIRE_LAUNCH(BarrierInBothBranches, dim3(1), dim3(64), 0, nullptr);
  ExpectFault(error,
              emulator::FaultKind::kDivergentBarrier,
              "BarrierInBothBranches",
              32,
              kDivergentBarrierLine);
}

constexpr int kLonelyBarrierLine = __LINE__ + 3;
QUIRE_KERNEL void BarrierForSomeLanes(float* out) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  }
  out[threadIdx.x] = WarpSum(1.0F);
}

TEST_F(FaultTest, ABarrierThatSomeThreadsPassByIsReported) {
  DeviceArray<float> out(32);
  const int error = QUIRE_LAUNCH(BarrierForSomeLanes, dim3(1), dim3(32), 0, nullptr, out.data());
  ExpectFault(
      error, emulator::FaultKind::kDeadlock, "BarrierForSomeLanes", 31, kLonelyBarrierLine + 2);
  ASSERT_EQ(seen_faults.size(), 1u);
  const std::string& text = seen_faults[0].text;
  EXPECT_NE(text.find("thread (0, 0, 0), warp 0, lane 0, waits in __syncthreads"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("emulator_fault_test.cc:" + std::to_string(kLonelyBarrierLine)),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("thread (1, 0, 0), warp 0, lane 1, waits in a shuffle of mask ffffffff"),
            std::string::npos)
      << text;
}

constexpr int kPartialShuffleLine = __LINE__ + 3;
QUIRE_KERNEL void ShuffleInABranch(float* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(kWholeWarp, 1.0F, 1);
  } else {
    __syncwarp(0xFFFF0000);
    __syncwarp(0xFFFF0000);
  }
}

TEST_F(FaultTest, AShuffleOfAWholeWarpThatHalfOfItReachesIsReported) {
  DeviceArray<float> out(32);
  const int error = QUIRE_LAUNCH(ShuffleInABranch, dim3(1), dim3(32), 0, nullptr, out.data());
  // The upper half returns while the lower one waits for it.
  ExpectFault(error, emulator::FaultKind::kLaneMissing, "ShuffleInABranch", 0, kPartialShuffleLine);
}

constexpr int kReturnedLaneLine = __LINE__ + 6;
QUIRE_KERNEL void ShuffleAfterAReturn(float* out) {
  if (threadIdx.x == 3) {
    return;
  }
  __syncwarp(~8u);
  out[threadIdx.x] = __shfl_xor_sync(kWholeWarp, 1.0F, 1);
}

TEST_F(FaultTest, AMaskWithALaneThatHasReturnedIsReported) {
  DeviceArray<float> out(64);
  const int error = QUIRE_LAUNCH(ShuffleAfterAReturn, dim3(1), dim3(32), 0, nullptr, out.data());
  ExpectFault(
      error, emulator::FaultKind::kLaneMissing, "ShuffleAfterAReturn", 31, kReturnedLaneLine);
}

constexpr int kMissingLaneLine = __LINE__ + 1;
QUIRE_KERNEL void SyncWarp() { __syncwarp(); }

TEST_F(FaultTest, AMaskWithALaneThatNeverWasIsReported) {
  const int error = QUIRE_LAUNCH(SyncWarp, dim3(1), dim3(48), 0, nullptr);
  ExpectFault(error, emulator::FaultKind::kLaneMissing, "SyncWarp", 32, kMissingLaneLine);
}

constexpr int kOutsideMaskLine = __LINE__ + 1;
QUIRE_KERNEL void SyncOthers() { __syncwarp(0xFFFFFFFE); }

TEST_F(FaultTest, ACallerOutsideOfItsMaskIsReported) {
  const int error = QUIRE_LAUNCH(SyncOthers, dim3(1), dim3(32), 0, nullptr);
  ExpectFault(error, emulator::FaultKind::kNotInMask, "SyncOthers", 0, kOutsideMaskLine);
}

constexpr int kShuffleSourceLine = __LINE__ + 3;
QUIRE_KERNEL void ReadOutsideOfTheMask(int32_t* out) {
  if (threadIdx.x < 8) {
    out[threadIdx.x] = __shfl_down_sync(0xFF, 1, 1);
  }
}

TEST_F(FaultTest, AShuffleFromALaneOutsideOfTheMaskIsReported) {
  DeviceArray<int32_t> out(8);
  const int error = QUIRE_LAUNCH(ReadOutsideOfTheMask, dim3(1), dim3(32), 0, nullptr, out.data());
  ExpectFault(
      error, emulator::FaultKind::kNotInMask, "ReadOutsideOfTheMask", 7, kShuffleSourceLine);
}

constexpr int kMixedLine = __LINE__ + 5;
QUIRE_KERNEL void ShuffleAndVote(int32_t* out) {
  if (threadIdx.x < 31) {
    out[threadIdx.x] = __shfl_xor_sync(kWholeWarp, 1, 1);
  } else {
    out[threadIdx.x] = __any_sync(kWholeWarp, 1);
  }
}

TEST_F(FaultTest, DifferentOperationsOfOneMaskAreReported) {
  DeviceArray<int32_t> out(32);
  const int error = QUIRE_LAUNCH(ShuffleAndVote, dim3(1), dim3(32), 0, nullptr, out.data());
  ExpectFault(error, emulator::FaultKind::kDivergentWarp, "ShuffleAndVote", 31, kMixedLine);
}

constexpr int kDivergentMmaLine = __LINE__ + 8;
QUIRE_KERNEL void MultiplyInBothBranches(float* out) {
  float d[4] = {};
  const uint32_t a[4] = {};
  const uint32_t b[2] = {};
  if (threadIdx.x < 16) {
    Mma16816<Bf16>(d, a, b);
  } else {
    Mma16816<Bf16>(d, a, b);
  }
  out[threadIdx.x] = d[0];
}

TEST_F(FaultTest, AMatrixInstructionInEachOfTwoBranchesIsReported) {
  DeviceArray<float> out(32);
  const int error = QUIRE_LAUNCH(MultiplyInBothBranches, dim3(1), dim3(32), 0, nullptr, out.data());
  ExpectFault(
      error, emulator::FaultKind::kDivergentWarp, "MultiplyInBothBranches", 31, kDivergentMmaLine);
}

constexpr int kMisalignedLoadLine = __LINE__ + 3;
QUIRE_KERNEL void LoadMisaligned(const Bf16* in, Bf16* out) {
  float values[8];
  LoadVector<Bf16, 8>(in + 4 * threadIdx.x, values);
  StoreVector<Bf16, 8>(out + 4 * threadIdx.x, values);
}
constexpr int kMisalignedStoreLine = __LINE__ + 3;
QUIRE_KERNEL void StoreMisaligned(float* out) {
  const float values[4] = {1, 2, 3, 4};
  StoreVector<float, 4>(out + 2 * threadIdx.x, values);
}

TEST_F(FaultTest, AMisalignedLoadIsReported) {
  DeviceArray<Bf16> in(16);
  DeviceArray<Bf16> out(16);
  const int error =
      QUIRE_LAUNCH(LoadMisaligned, dim3(1), dim3(2), 0, nullptr, in.data(), out.data());
  ExpectFault(error, emulator::FaultKind::kMisaligned, "LoadMisaligned", 1, kMisalignedLoadLine);
}

TEST_F(FaultTest, AMisalignedStoreIsReported) {
  DeviceArray<float> out(8);
  const int error = QUIRE_LAUNCH(StoreMisaligned, dim3(1), dim3(2), 0, nullptr, out.data());
  ExpectFault(error, emulator::FaultKind::kMisaligned, "StoreMisaligned", 1, kMisalignedStoreLine);
}

constexpr int kMisalignedMatrixLine = __LINE__ + 4;
QUIRE_KERNEL void LoadMatrixMisaligned() {
  QUIRE_SHARED_MEMORY(shared);
  uint32_t r[4];
  LoadMatrixX4(r, shared + 16 * threadIdx.x + (threadIdx.x == 9 ? 8 : 0));
}

TEST_F(FaultTest, AMisalignedMatrixRowIsReported) {
  const int error = QUIRE_LAUNCH(LoadMatrixMisaligned, dim3(1), dim3(32), 1024, nullptr);
  ExpectFault(
      error, emulator::FaultKind::kMisaligned, "LoadMatrixMisaligned", 9, kMisalignedMatrixLine);
}

constexpr int kOutsideMatrixLine = __LINE__ + 3;
QUIRE_KERNEL void LoadMatrixFromGlobal(const uint8_t* in) {
  uint32_t r[4];
  LoadMatrixX4Transposed(r, in);
}

TEST_F(FaultTest, AMatrixOutsideOfSharedMemoryIsReported) {
  DeviceArray<uint8_t> in(16);
  const int error = QUIRE_LAUNCH(LoadMatrixFromGlobal, dim3(1), dim3(32), 1024, nullptr, in.data());
  ExpectFault(
      error, emulator::FaultKind::kOutOfBounds, "LoadMatrixFromGlobal", 0, kOutsideMatrixLine);
}

constexpr int kOutsideCopyLine = __LINE__ + 3;
QUIRE_KERNEL void CopyBehindSharedMemory(const uint8_t* in) {
  QUIRE_SHARED_MEMORY(shared);
  CopyAsync16(shared + 16 * threadIdx.x, in, true);
  WaitCopies<0>();
}

TEST_F(FaultTest, ACopyToOutsideOfSharedMemoryIsReported) {
  DeviceArray<uint8_t> in(16);
  const int error = QUIRE_LAUNCH(CopyBehindSharedMemory, dim3(1), dim3(4), 48, nullptr, in.data());
  // The copies are in no group: the first threads wait for nothing and return with theirs in
  // flight.
  ASSERT_EQ(error, emulator::kErrorLaunchFailure);
  ASSERT_EQ(seen_faults.size(), 1u);
  EXPECT_EQ(seen_faults[0].kind, emulator::FaultKind::kCopyInFlight);
  EXPECT_EQ(seen_faults[0].line, kOutsideCopyLine);

  seen_faults.clear();
  const int second = QUIRE_LAUNCH(CopyBehindSharedMemory, dim3(1), dim3(1), 15, nullptr, in.data());
  ExpectFault(
      second, emulator::FaultKind::kOutOfBounds, "CopyBehindSharedMemory", 0, kOutsideCopyLine);
}

constexpr int kMisalignedCopyLine = __LINE__ + 3;
QUIRE_KERNEL void CopyMisaligned(const uint8_t* in) {
  QUIRE_SHARED_MEMORY(shared);
  CopyAsync16(shared, in + 8, true);
}

TEST_F(FaultTest, AMisalignedCopyIsReported) {
  DeviceArray<uint8_t> in(32);
  const int error = QUIRE_LAUNCH(CopyMisaligned, dim3(1), dim3(1), 16, nullptr, in.data());
  ExpectFault(error, emulator::FaultKind::kMisaligned, "CopyMisaligned", 0, kMisalignedCopyLine);
}

constexpr int kForgottenCopyLine = __LINE__ + 3;
QUIRE_KERNEL void ForgetToWait(const uint8_t* in) {
  QUIRE_SHARED_MEMORY(shared);
  CopyAsync16(shared, in, true);
  CommitCopies();
}

TEST_F(FaultTest, AThreadThatReturnsWithCopiesInFlightIsReported) {
  DeviceArray<uint8_t> in(16);
  const int error = QUIRE_LAUNCH(ForgetToWait, dim3(1), dim3(1), 16, nullptr, in.data());
  ExpectFault(error, emulator::FaultKind::kCopyInFlight, "ForgetToWait", 0, kForgottenCopyLine);
}

QUIRE_KERNEL void WriteOutside(int32_t offset) {
  QUIRE_SHARED_MEMORY(shared);
  if (blockIdx.x == 1) {
    shared[offset] = 0;
  }
}

TEST_F(FaultTest, WritesNextToSharedMemoryAreReportedAtTheEndOfTheCta) {
  if (kUnderAsan) {
    GTEST_SKIP() << "ASan ends the process: see planted_faults_test";
  }
  EXPECT_EQ(QUIRE_LAUNCH(WriteOutside, dim3(3), dim3(1), 40, nullptr, 39), 0);
  for (const int32_t offset : {40, -1}) {
    seen_faults.clear();
    EXPECT_EQ(QUIRE_LAUNCH(WriteOutside, dim3(3), dim3(1), 40, nullptr, offset),
              emulator::kErrorLaunchFailure);
    ASSERT_EQ(seen_faults.size(), 1u);
    EXPECT_EQ(seen_faults[0].kind, emulator::FaultKind::kSharedOverrun);
    EXPECT_EQ(seen_faults[0].cta, 1u);
  }
}

[[gnu::noinline]] int32_t FillStack() {
  volatile char bytes[256 * 1024];
  for (volatile char& byte : bytes) {
    byte = 1;
  }
  return bytes[0];
}
QUIRE_KERNEL void OverflowStack(int32_t* out) {
  if (threadIdx.x == 1) {  // below its stack is that of thread 0, which has returned
    out[0] = FillStack();
  }
}

TEST_F(FaultTest, AStackOverflowIsReported) {
  if (kUnderAsan) {
    GTEST_SKIP() << "ASan's frames are larger, and it ends the process";
  }
  DeviceArray<int32_t> out(1);
  EXPECT_EQ(QUIRE_LAUNCH(OverflowStack, dim3(1), dim3(2), 0, nullptr, out.data()),
            emulator::kErrorLaunchFailure);
  ASSERT_EQ(seen_faults.size(), 1u);
  EXPECT_EQ(seen_faults[0].kind, emulator::FaultKind::kStackOverflow);
  EXPECT_EQ(seen_faults[0].thread, 1u);
}

constexpr int kCtaSumLine = __LINE__ + 4;
QUIRE_KERNEL void SumInABranch(float* out) {
  QUIRE_SHARED_MEMORY(shared);
  if (threadIdx.x != 40) {
    out[threadIdx.x] = CtaSum(1.0F, reinterpret_cast<float*>(shared));
  }
}

TEST_F(FaultTest, AFaultInAHelperNamesTheKernelsLine) {
  DeviceArray<float> out(64);
  const int error = QUIRE_LAUNCH(SumInABranch, dim3(1), dim3(64), 128, nullptr, out.data());
  ExpectFault(error, emulator::FaultKind::kLaneMissing, "SumInABranch", 32, kCtaSumLine);
}

QUIRE_KERNEL void FailInOneCta() {
  if (blockIdx.x == 2 && threadIdx.x == 5) {
    float values[4];
    LoadVector<float, 4>(reinterpret_cast<const float*>(uintptr_t{4}), values);
  }
}

TEST_F(FaultTest, TheCtaIsNamedAndTheRestOfTheGridIsNotRun) {
  EXPECT_EQ(QUIRE_LAUNCH(FailInOneCta, dim3(5), dim3(32), 0, nullptr),
            emulator::kErrorLaunchFailure);
  ASSERT_EQ(seen_faults.size(), 1u);
  EXPECT_EQ(seen_faults[0].cta, 2u);
  EXPECT_NE(seen_faults[0].text.find("CTA (2, 0, 0), thread (5, 0, 0)"), std::string::npos);
}

TEST(FaultDeathTest, WithoutAHandlerAFaultIsPrintedAndAborts) {
  EXPECT_DEATH(static_cast<void>(QUIRE_LAUNCH(SyncOthers, dim3(1), dim3(32), 0, nullptr)),
               "not in the mask in kernel SyncOthers, CTA \\(0, 0, 0\\), thread \\(0, 0, 0\\) at "
               ".*emulator_fault_test.cc");
}

}  // namespace
}  // namespace quire::gpu
