// Bugs that kernels are prone to, planted one by one: each must be found by every build that can
// find it, and the same kernel without the bug must pass in silence. A bug that stays unseen fails
// the test.
//
//                              plain              ASan               TSan
//   missing wait on a copy     NaN                NaN                race
//   missing barrier            NaN                NaN                race
//   missing __syncwarp         NaN                NaN                race
//   write before a read ends   wrong numbers      wrong numbers      race
//   copy before a read ends    NaN                NaN                race
//   race between CTAs          -                  -                  race
//   unordered counter of CTAs  -                  -                  race
//   write next to shared mem.  fault at the end   overflow           fault at the end
//   read next to shared mem.   -                  overflow           -
//   global overrun             -                  overflow           -
//   copy from past the end     -                  fault              -
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/atomic.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warp.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/support/sanitizer.h"

// The first report ends the process: a bug in a kernel without one fails the test, too.
// NOLINTNEXTLINE(readability-identifier-naming, bugprone-reserved-identifier): TSan's name.
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }

namespace quire::gpu {
namespace {

constexpr uint32_t kNumThreads = 64;

// Runs launch, a planted bug, in a death test's process. TSan must end it with a report of a race
// in the kernel.
template <typename Launch>
void ExpectRace(const std::string& kernel, Launch launch) {
  EXPECT_DEATH(launch(), "data race.*" + kernel);
}

class PlantedFaultTest : public ::testing::Test {
 protected:
  // A child that starts anew: TSan's state does not survive a fork.
  PlantedFaultTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static bool AnyNan(const std::vector<float>& values) {
    for (const float value : values) {
      if (std::isnan(value)) {
        return true;
      }
    }
    return false;
  }
};

// ---- Missing waits and barriers ----

// out[i] = in[i ^ 4]: each thread copies four numbers into shared memory and reads four that the
// thread after it, or before it, has copied.
template <bool kWait, bool kBarrier>
QUIRE_KERNEL void SwapNeighbours(const float* in, float* out) {
  QUIRE_SHARED_MEMORY(shared);
  auto* tile = reinterpret_cast<float*>(shared);
  const uint32_t mine = 4 * threadIdx.x;
  CopyAsync16(tile + mine, in + mine, true);
  CommitCopies();
  if (kWait) {
    WaitCopies<0>();
  }
  if (kBarrier) {
    __syncthreads();
  }
  float values[4];
  LoadVector<float, 4>(tile + (mine ^ 4), values);
  StoreVector<float, 4>(out + mine, values);
  WaitCopies<0>();
}

template <bool kWait, bool kBarrier>
std::vector<float> RunSwapNeighbours() {
  constexpr int64_t kCount = 4 * kNumThreads;
  std::vector<float> numbers(kCount);
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(i);
  }
  DeviceArray<float> in(numbers);
  DeviceArray<float> out(kCount);
  EXPECT_EQ(QUIRE_LAUNCH((SwapNeighbours<kWait, kBarrier>),
                         dim3(1),
                         dim3(kNumThreads),
                         kCount * sizeof(float),
                         nullptr,
                         in.data(),
                         out.data()),
            0);
  return out.ToHost();
}

TEST_F(PlantedFaultTest, WithWaitAndBarrierTheCopyIsRight) {
  std::vector<float> expected;
  for (uint32_t i = 0; i < 4 * kNumThreads; ++i) {
    expected.push_back(static_cast<float>(i ^ 4));
  }

  EXPECT_EQ((RunSwapNeighbours<true, true>()), expected);
}

TEST_F(PlantedFaultTest, AMissingWaitForACopyIsFound) {
  if (kUnderTsan) {
    ExpectRace("SwapNeighbours", [] { RunSwapNeighbours<false, true>(); });
  } else {
    EXPECT_TRUE(AnyNan(RunSwapNeighbours<false, true>()));
  }
}

TEST_F(PlantedFaultTest, AMissingBarrierIsFound) {
  if (kUnderTsan) {
    ExpectRace("SwapNeighbours", [] { RunSwapNeighbours<true, false>(); });
  } else {
    EXPECT_TRUE(AnyNan(RunSwapNeighbours<true, false>()));
  }
}

// out[i] = 2 * in[i ^ 1], then 4 * in[i], ...: each round reads what the neighbour wrote in the one
// before.
template <bool kBarrierAfterRead>
QUIRE_KERNEL void SwapInRounds(const float* in, float* out) {
  QUIRE_SHARED_MEMORY(shared);
  auto* values = reinterpret_cast<float*>(shared);
  float value = in[threadIdx.x];
  for (int round = 0; round < 3; ++round) {
    values[threadIdx.x] = value;
    __syncthreads();
    value = 2 * values[threadIdx.x ^ 1];
    if (kBarrierAfterRead) {
      __syncthreads();
    }
  }
  out[threadIdx.x] = value;
}

template <bool kBarrierAfterRead>
std::vector<float> RunSwapInRounds() {
  DeviceArray<float> in(std::vector<float>(kNumThreads, 1.0F));
  DeviceArray<float> out(kNumThreads);
  EXPECT_EQ(QUIRE_LAUNCH(SwapInRounds<kBarrierAfterRead>,
                         dim3(1),
                         dim3(kNumThreads),
                         kNumThreads * sizeof(float),
                         nullptr,
                         in.data(),
                         out.data()),
            0);
  return out.ToHost();
}

TEST_F(PlantedFaultTest, AMissingBarrierBetweenAReadAndTheNextWriteIsFound) {
  const std::vector<float> expected(kNumThreads, 8.0F);
  EXPECT_EQ(RunSwapInRounds<true>(), expected);
  if (kUnderTsan) {
    ExpectRace("SwapInRounds", [] { RunSwapInRounds<false>(); });
  } else {
    EXPECT_NE(RunSwapInRounds<false>(), expected);
  }
}

// A ring of two tiles of 16 bytes a thread. out[i] is the sum of the numbers that the next thread
// has copied.
template <bool kBarrierBeforeReuse>
QUIRE_KERNEL void SumThroughRing(const float* in, int32_t num_tiles, float* out) {
  QUIRE_SHARED_MEMORY(shared);
  auto* ring = reinterpret_cast<float*>(shared);
  const uint32_t tile_floats = 4 * blockDim.x;
  const auto copy = [&](int32_t tile) {
    if (tile < num_tiles) {
      CopyAsync16(ring + static_cast<uint32_t>(tile % 2) * tile_floats + 4 * threadIdx.x,
                  in + static_cast<uint32_t>(tile) * tile_floats + 4 * threadIdx.x,
                  true);
    }
    CommitCopies();
  };
  float sum = 0.0F;
  copy(0);
  for (int32_t tile = 0; tile < num_tiles; ++tile) {
    copy(tile + 1);
    WaitCopies<1>();
    __syncthreads();
    const uint32_t next = (threadIdx.x + 1) % blockDim.x;
    float values[4];
    LoadVector<float, 4>(ring + static_cast<uint32_t>(tile % 2) * tile_floats + 4 * next, values);
    sum += values[0] + values[1] + values[2] + values[3];
    if (kBarrierBeforeReuse) {
      __syncthreads();
    }
  }
  out[threadIdx.x] = sum;
}

template <bool kBarrierBeforeReuse>
std::vector<float> RunSumThroughRing() {
  constexpr int32_t kNumTiles = 5;
  DeviceArray<float> in(std::vector<float>(kNumTiles * 4 * kNumThreads, 1.0F));
  DeviceArray<float> out(kNumThreads);
  EXPECT_EQ(QUIRE_LAUNCH(SumThroughRing<kBarrierBeforeReuse>,
                         dim3(1),
                         dim3(kNumThreads),
                         2 * 4 * kNumThreads * sizeof(float),
                         nullptr,
                         in.data(),
                         kNumTiles,
                         out.data()),
            0);
  return out.ToHost();
}

TEST_F(PlantedFaultTest, ACopyIntoATileThatIsStillReadIsFound) {
  EXPECT_EQ(RunSumThroughRing<true>(), std::vector<float>(kNumThreads, 20.0F));
  if (kUnderTsan) {
    ExpectRace("SumThroughRing", [] { RunSumThroughRing<false>(); });
  } else {
    EXPECT_TRUE(AnyNan(RunSumThroughRing<false>()));
  }
}

template <bool kSyncWarp>
QUIRE_KERNEL void ReverseWarp(const float* in, float* out) {
  QUIRE_SHARED_MEMORY(shared);
  auto* values = reinterpret_cast<float*>(shared);
  values[threadIdx.x] = in[threadIdx.x];
  if (kSyncWarp) {
    __syncwarp();
  }
  out[threadIdx.x] = values[31 - threadIdx.x];
}

template <bool kSyncWarp>
std::vector<float> RunReverseWarp() {
  DeviceArray<float> in(std::vector<float>(32, 1.0F));
  DeviceArray<float> out(32);
  EXPECT_EQ(
      QUIRE_LAUNCH(ReverseWarp<kSyncWarp>, dim3(1), dim3(32), 128, nullptr, in.data(), out.data()),
      0);
  return out.ToHost();
}

TEST_F(PlantedFaultTest, AMissingSyncwarpIsFound) {
  EXPECT_EQ(RunReverseWarp<true>(), std::vector<float>(32, 1.0F));
  if (kUnderTsan) {
    ExpectRace("ReverseWarp", [] { RunReverseWarp<false>(); });
  } else {
    EXPECT_TRUE(AnyNan(RunReverseWarp<false>()));
  }
}

// ---- Races between CTAs ----

// Every CTA adds to one number. CTAs do so before or after their own barrier by turns, because a
// CTA's barrier must not count as one between CTAs.
template <bool kAtomic>
QUIRE_KERNEL void CountCtas(int32_t* count) {
  if (blockIdx.x % 2 == 1) {
    __syncthreads();
  }
  if (threadIdx.x == blockIdx.x) {
    if (kAtomic) {
      atomicAdd(count, 1);
    } else {
      *count += 1;
    }
  }
  if (blockIdx.x % 2 == 0) {
    __syncthreads();
  }
}

template <bool kAtomic>
int32_t RunCountCtas() {
  DeviceArray<int32_t> count(std::vector<int32_t>{0});
  EXPECT_EQ(QUIRE_LAUNCH(CountCtas<kAtomic>, dim3(4), dim3(kNumThreads), 0, nullptr, count.data()),
            0);
  return count.ToHost()[0];
}

// Each thread of a CTA writes a number, and the CTA that comes last adds up all numbers.
template <bool kOrdered>
QUIRE_KERNEL void AddUpLast(int32_t* numbers, int32_t* num_done, int32_t* sum) {
  QUIRE_SHARED_MEMORY(shared);
  auto* is_last = reinterpret_cast<bool*>(shared);
  numbers[blockIdx.x * blockDim.x + threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) {
    const int32_t before = kOrdered ? AddAcquireRelease(num_done, 1) : atomicAdd(num_done, 1);
    *is_last = before == static_cast<int32_t>(gridDim.x) - 1;
  }
  __syncthreads();
  if (*is_last && threadIdx.x == 1) {
    *sum = 0;
    for (uint32_t i = 0; i < gridDim.x * blockDim.x; ++i) {
      *sum += numbers[i];
    }
  }
}

template <bool kOrdered>
int32_t RunAddUpLast() {
  constexpr int kCtas = 3;
  DeviceArray<int32_t> numbers(kCtas * kNumThreads);
  DeviceArray<int32_t> num_done(std::vector<int32_t>{0});
  DeviceArray<int32_t> sum(1);
  EXPECT_EQ(QUIRE_LAUNCH(AddUpLast<kOrdered>,
                         dim3(kCtas),
                         dim3(kNumThreads),
                         sizeof(bool),
                         nullptr,
                         numbers.data(),
                         num_done.data(),
                         sum.data()),
            0);
  return sum.ToHost()[0];
}

// CTA 0 writes what CTA 1 reads: in one launch, or the one after.
template <bool kSameLaunch>
QUIRE_KERNEL void HandOver(int32_t* number, int32_t* copy, bool first_launch) {
  if (blockIdx.x == 0 && first_launch) {
    *number = 5;
  }
  if (blockIdx.x == 1 && kSameLaunch == first_launch) {
    *copy = *number;
  }
}

template <bool kSameLaunch>
int32_t RunHandOver() {
  DeviceArray<int32_t> number(std::vector<int32_t>{0});
  DeviceArray<int32_t> copy(1);
  for (const bool first_launch : {true, false}) {
    EXPECT_EQ(QUIRE_LAUNCH(HandOver<kSameLaunch>,
                           dim3(2),
                           dim3(1),
                           0,
                           nullptr,
                           number.data(),
                           copy.data(),
                           first_launch),
              0);
  }
  return copy.ToHost()[0];
}

TEST_F(PlantedFaultTest, AWriteOfTwoCtasToOnePlaceIsFound) {
  EXPECT_EQ(RunCountCtas<true>(), 4);
  if (!kUnderTsan) {
    GTEST_SKIP() << "shows under TSan only: CTAs run one after another";
  }
  ExpectRace("CountCtas", [] { RunCountCtas<false>(); });
}

TEST_F(PlantedFaultTest, AReadOfWhatAnotherCtaWritesIsFound) {
  if (!kUnderTsan) {
    GTEST_SKIP() << "shows under TSan only: CTAs run one after another";
  }
  ExpectRace("HandOver", [] { RunHandOver<true>(); });
}

TEST_F(PlantedFaultTest, ACounterThatDoesNotOrderCtasIsFound) {
  if (!kUnderTsan) {
    GTEST_SKIP() << "shows under TSan only: CTAs run one after another";
  }
  ExpectRace("AddUpLast", [] { RunAddUpLast<false>(); });
}

TEST_F(PlantedFaultTest, TheLastCtaMayReadWhatTheOthersWrote) {
  EXPECT_EQ(RunAddUpLast<true>(), 3 * int32_t{kNumThreads});
}

TEST_F(PlantedFaultTest, AKernelMayReadWhatTheOneBeforeItWrote) {
  EXPECT_EQ(RunHandOver<false>(), 5);
}

// ---- Overruns ----

QUIRE_KERNEL void WriteShared(int32_t index) {
  QUIRE_SHARED_MEMORY(shared);
  reinterpret_cast<float*>(shared)[index] = 1.0F;
}

QUIRE_KERNEL void ReadShared(int32_t index, float* out) {
  QUIRE_SHARED_MEMORY(shared);
  out[0] = reinterpret_cast<const float*>(shared)[index];
}

TEST_F(PlantedFaultTest, AWriteNextToSharedMemoryIsFound) {
  const auto write = [](int32_t index) {
    return QUIRE_LAUNCH(WriteShared, dim3(1), dim3(1), 10 * sizeof(float), nullptr, index);
  };
  EXPECT_EQ(write(9), 0);
  const std::string report = kUnderAsan ? "heap-buffer-overflow.*WriteShared"
                                        : "shared memory were written in kernel WriteShared";
  EXPECT_DEATH(write(10), report);
  EXPECT_DEATH(write(-1), report);
}

TEST_F(PlantedFaultTest, AReadNextToSharedMemoryIsFound) {
  DeviceArray<float> out(1);
  const auto read = [&](int32_t index) {
    return QUIRE_LAUNCH(
        ReadShared, dim3(1), dim3(1), 10 * sizeof(float), nullptr, index, out.data());
  };
  EXPECT_EQ(read(9), 0);
  if (!kUnderAsan) {
    GTEST_SKIP() << "shows under ASan only";
  }
  EXPECT_DEATH(read(10), "heap-buffer-overflow.*ReadShared");
}

QUIRE_KERNEL void WriteGlobal(float* out) { out[threadIdx.x] = 1.0F; }

TEST_F(PlantedFaultTest, AWritePastTheEndOfAnArrayIsFound) {
  DeviceArray<float> out(33);
  const auto write = [&](uint32_t num_threads) {
    return QUIRE_LAUNCH(WriteGlobal, dim3(1), dim3(num_threads), 0, nullptr, out.data());
  };
  EXPECT_EQ(write(33), 0);
  if (!kUnderAsan) {
    GTEST_SKIP() << "shows under ASan only";
  }
  EXPECT_DEATH(write(34), "heap-buffer-overflow.*WriteGlobal");
}

QUIRE_KERNEL void CopyGlobal(const float* in, int32_t index) {
  QUIRE_SHARED_MEMORY(shared);
  CopyAsync16(shared, in + index, true);
  CommitCopies();
  WaitCopies<0>();
}

TEST_F(PlantedFaultTest, ACopyFromPastTheEndOfAnArrayIsFound) {
  DeviceArray<float> in(10);  // the third four are two short
  const auto copy = [&](int32_t index) {
    return QUIRE_LAUNCH(CopyGlobal, dim3(1), dim3(1), 16, nullptr, in.data(), index);
  };
  EXPECT_EQ(copy(4), 0);
  if (!kUnderAsan) {
    GTEST_SKIP() << "shows under ASan only";
  }
  EXPECT_DEATH(copy(8), "not allocated in kernel CopyGlobal.*planted_faults_test.cc");
}

}  // namespace
}  // namespace quire::gpu
