// The thread model of the emulator, and what threads do together, against plain loops.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/warp.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

uint32_t LinearThread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// ---- Launches ----

QUIRE_KERNEL void CountVisits(int32_t* visits) {
  const uint32_t cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  visits[cta * blockDim.x * blockDim.y * blockDim.z + LinearThread()] += 1;
}

TEST(LaunchTest, EveryThreadOfEveryCtaRunsOnce) {
  DeviceArray<int32_t> visits(std::vector<int32_t>(2 * 3 * 2 * 5 * 3 * 4, 0));

  ASSERT_EQ(QUIRE_LAUNCH(CountVisits, dim3(2, 3, 2), dim3(5, 3, 4), 0, nullptr, visits.data()), 0);

  EXPECT_EQ(visits.ToHost(), std::vector<int32_t>(2 * 3 * 2 * 5 * 3 * 4, 1));
}

QUIRE_KERNEL void ChangeParameter(int32_t parameter, int32_t* out) {
  parameter += static_cast<int32_t>(threadIdx.x);
  out[threadIdx.x] = parameter;
}

TEST(LaunchTest, ArgumentsAreEvaluatedOnceAndEachThreadHasItsOwnCopy) {
  DeviceArray<int32_t> out(3);
  int32_t evaluations = 10;

  ASSERT_EQ(QUIRE_LAUNCH(ChangeParameter, dim3(1), dim3(3), 0, nullptr, ++evaluations, out.data()),
            0);

  EXPECT_EQ(out.ToHost(), (std::vector<int32_t>{11, 12, 13}));
}

QUIRE_KERNEL void Nothing() {}

TEST(LaunchTest, ShapesThatTheGpuHasNoRoomForAreRefused) {
  EXPECT_EQ(QUIRE_LAUNCH(Nothing, dim3(1), dim3(1024), 0, nullptr), 0);
  EXPECT_EQ(QUIRE_LAUNCH(Nothing, dim3(1), dim3(1025), 0, nullptr),
            emulator::kErrorInvalidConfiguration);
  EXPECT_EQ(QUIRE_LAUNCH(Nothing, dim3(1), dim3(32, 33), 0, nullptr),
            emulator::kErrorInvalidConfiguration);
  EXPECT_EQ(QUIRE_LAUNCH(Nothing, dim3(1), dim3(1, 1, 65), 0, nullptr),
            emulator::kErrorInvalidConfiguration);
  EXPECT_EQ(QUIRE_LAUNCH(Nothing, dim3(0), dim3(32), 0, nullptr),
            emulator::kErrorInvalidConfiguration);
  EXPECT_EQ(QUIRE_LAUNCH(Nothing, dim3(1, 65536), dim3(32), 0, nullptr),
            emulator::kErrorInvalidConfiguration);
}

TEST(LaunchTest, SharedMemoryOverTheLimitIsRefused) {
  EXPECT_EQ(QUIRE_LAUNCH(Nothing, dim3(1), dim3(32), 227 * 1024, nullptr), 0);
  EXPECT_EQ(QUIRE_LAUNCH(Nothing, dim3(1), dim3(32), 227 * 1024 + 1, nullptr),
            emulator::kErrorInvalidValue);
}

QUIRE_KERNEL void SpoilSharedMemory(int32_t num_bytes, int32_t* unlike_poison, int32_t* aligned) {
  QUIRE_SHARED_MEMORY(shared);
  unlike_poison[blockIdx.x] = 0;
  for (int32_t i = 0; i < num_bytes; ++i) {
    unlike_poison[blockIdx.x] += shared[i] != 0xFF ? 1 : 0;
    shared[i] = 7;
  }
  aligned[blockIdx.x] = reinterpret_cast<uintptr_t>(shared) % 128 == 0 ? 1 : 0;
}

TEST(LaunchTest, SharedMemoryIsPoisonAndAlignedAtTheStartOfEachCta) {
  DeviceArray<int32_t> unlike_poison(3);
  DeviceArray<int32_t> aligned(3);

  ASSERT_EQ(QUIRE_LAUNCH(SpoilSharedMemory,
                         dim3(3),
                         dim3(1),
                         1000,
                         nullptr,
                         1000,
                         unlike_poison.data(),
                         aligned.data()),
            0);

  EXPECT_EQ(unlike_poison.ToHost(), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(aligned.ToHost(), (std::vector<int32_t>{1, 1, 1}));
}

// ---- Barriers ----

// Each round hands every thread's value to the thread after it, across warps.
QUIRE_KERNEL void PassAround(int32_t num_rounds, int32_t* out) {
  QUIRE_SHARED_MEMORY(shared);
  auto* values = reinterpret_cast<int32_t*>(shared);
  auto value = static_cast<int32_t>(threadIdx.x);
  for (int32_t round = 0; round < num_rounds; ++round) {
    values[threadIdx.x] = value;
    __syncthreads();
    value = values[(threadIdx.x + blockDim.x - 1) % blockDim.x];
    __syncthreads();
  }
  out[threadIdx.x] = value;
}

TEST(BarrierTest, WhatIsWrittenBeforeABarrierIsReadAfterIt) {
  DeviceArray<int32_t> out(96);

  ASSERT_EQ(QUIRE_LAUNCH(PassAround, dim3(1), dim3(96), 96 * 4, nullptr, 10, out.data()), 0);

  std::vector<int32_t> expected(96);
  for (int32_t i = 0; i < 96; ++i) {
    expected[static_cast<size_t>(i)] = (i + 96 - 10) % 96;
  }
  EXPECT_EQ(out.ToHost(), expected);
}

QUIRE_KERNEL void ReturnOneByOne(int32_t* barriers_passed) {
  barriers_passed[threadIdx.x] = 0;
  for (uint32_t i = 0; i < threadIdx.x; ++i) {
    __syncthreads();
    barriers_passed[threadIdx.x] += 1;
  }
}

TEST(BarrierTest, ThreadsThatHaveReturnedAreNotWaitedFor) {
  DeviceArray<int32_t> barriers_passed(40);

  ASSERT_EQ(QUIRE_LAUNCH(ReturnOneByOne, dim3(1), dim3(40), 0, nullptr, barriers_passed.data()), 0);

  std::vector<int32_t> expected(40);
  for (int32_t i = 0; i < 40; ++i) {
    expected[static_cast<size_t>(i)] = i;
  }
  EXPECT_EQ(barriers_passed.ToHost(), expected);
}

// Round r: the first r threads say yes.
QUIRE_KERNEL void Vote(int32_t* results) {
  for (uint32_t round = 0; round <= blockDim.x; ++round) {
    const int yes = threadIdx.x < round ? 2 : 0;
    const int any = __syncthreads_or(yes);
    const int all = __syncthreads_and(yes);
    const int count = __syncthreads_count(yes);
    results[round * blockDim.x + threadIdx.x] = any + 10 * all + 100 * count;
  }
}

TEST(BarrierTest, BarriersCountVotes) {
  DeviceArray<int32_t> results(49 * 48);

  ASSERT_EQ(QUIRE_LAUNCH(Vote, dim3(1), dim3(48), 0, nullptr, results.data()), 0);

  std::vector<int32_t> expected;
  for (int32_t yes = 0; yes <= 48; ++yes) {
    expected.insert(expected.end(), 48, (yes > 0 ? 1 : 0) + (yes == 48 ? 10 : 0) + 100 * yes);
  }
  EXPECT_EQ(results.ToHost(), expected);
}

// ---- Warps ----

// The value of lane i is 100 + i in every type; a group of results for each width.
template <typename T>
QUIRE_KERNEL void ShuffleAll(T* out) {
  const T value = static_cast<T>(100 + threadIdx.x);
  for (int width = 32; width >= 4; width /= 2) {
    const T results[] = {__shfl_sync(kWholeWarp, value, 37, width),
                         __shfl_xor_sync(kWholeWarp, value, 5, width),
                         __shfl_down_sync(kWholeWarp, value, 3, width),
                         __shfl_up_sync(kWholeWarp, value, 3, width)};
    for (const T result : results) {
      out[threadIdx.x] = result;
      out += 32;
    }
  }
}

template <typename T>
void ExpectShuffles() {
  DeviceArray<T> out(4 * 4 * 32);

  ASSERT_EQ(QUIRE_LAUNCH(ShuffleAll<T>, dim3(1), dim3(32), 0, nullptr, out.data()), 0);

  std::vector<T> expected;
  for (int width = 32; width >= 4; width /= 2) {
    const auto segment = [&](int lane) { return lane / width * width; };
    for (int lane = 0; lane < 32; ++lane) {
      expected.push_back(static_cast<T>(100 + segment(lane) + 37 % width));
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int source = lane ^ 5;
      expected.push_back(static_cast<T>(100 + (source < segment(lane) + width ? source : lane)));
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int source = lane + 3;
      expected.push_back(static_cast<T>(100 + (source < segment(lane) + width ? source : lane)));
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int source = lane - 3;
      expected.push_back(static_cast<T>(100 + (source >= segment(lane) ? source : lane)));
    }
  }
  EXPECT_EQ(out.ToHost(), expected);
}

TEST(WarpTest, ShufflesReadTheNamedLane) {
  ExpectShuffles<int32_t>();
  ExpectShuffles<uint32_t>();
  ExpectShuffles<float>();
  ExpectShuffles<double>();
  ExpectShuffles<int64_t>();
  ExpectShuffles<uint64_t>();
}

// The even lanes and the odd ones shuffle among themselves, the odd ones three times as often.
QUIRE_KERNEL void ShuffleByHalves(int32_t* out) {
  auto value = static_cast<int32_t>(threadIdx.x);
  if (threadIdx.x % 2 == 0) {
    value = __shfl_xor_sync(0x55555555u, value, 2);
  } else {
    for (int i = 0; i < 3; ++i) {
      value = __shfl_xor_sync(0xAAAAAAAAu, value, 4 << i);
    }
  }
  out[threadIdx.x] = value;
}

TEST(WarpTest, PartsOfAWarpGoTheirOwnWays) {
  DeviceArray<int32_t> out(64);

  ASSERT_EQ(QUIRE_LAUNCH(ShuffleByHalves, dim3(1), dim3(64), 0, nullptr, out.data()), 0);

  std::vector<int32_t> expected(64);
  for (int32_t i = 0; i < 64; ++i) {
    expected[static_cast<size_t>(i)] = i % 2 == 0 ? i ^ 2 : i ^ 4 ^ 8 ^ 16;
  }
  EXPECT_EQ(out.ToHost(), expected);
}

// Lane 0 exchanges with 3, then with 1; lane 1 with 2, then with 0; and so on: each waits for one
// that still waits for another.
QUIRE_KERNEL void ShuffleInPairs(int32_t* out) {
  if (threadIdx.x >= 4) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x);
  const int partners[4][2] = {{3, 1}, {2, 0}, {3, 1}, {0, 2}};
  for (int round = 0; round < 2; ++round) {
    const int partner = partners[lane][round];
    const uint32_t mask = 1u << lane | 1u << partner;
    out[2 * lane + round] = __shfl_sync(mask, 10 * lane + round, partner);
  }
}

TEST(WarpTest, AnOperationWaitsForLanesThatAreInAnother) {
  DeviceArray<int32_t> out(8);

  ASSERT_EQ(QUIRE_LAUNCH(ShuffleInPairs, dim3(1), dim3(32), 0, nullptr, out.data()), 0);

  // 0 and 3 meet in the first round of both; 3 and 2 in the second of 3 and the first of 2; ...
  EXPECT_EQ(out.ToHost(), (std::vector<int32_t>{30, 11, 21, 1, 31, 10, 0, 20}));
}

QUIRE_KERNEL void CountBits(uint32_t mask, uint32_t yes, uint32_t* out) {
  const int predicate = static_cast<int>(yes >> threadIdx.x & 1) * 4;
  uint32_t* mine = out + 3 * threadIdx.x;
  mine[0] = mine[1] = mine[2] = 99;
  if ((mask >> threadIdx.x & 1) != 0) {
    mine[0] = __ballot_sync(mask, predicate);
    mine[1] = static_cast<uint32_t>(__any_sync(mask, predicate));
    mine[2] = static_cast<uint32_t>(__all_sync(mask, predicate));
  }
}

TEST(WarpTest, VotesAreOfTheLanesOfTheMask) {
  for (const uint32_t mask : {0xFFFFFFFFu, 0x0000FF00u, 0x80000001u}) {
    for (const uint32_t yes : {0u, 0xFFFFFFFFu, 0x00001000u, 0x80000001u, 0x12345678u}) {
      DeviceArray<uint32_t> out(96);

      ASSERT_EQ(QUIRE_LAUNCH(CountBits, dim3(1), dim3(32), 0, nullptr, mask, yes, out.data()), 0);

      std::vector<uint32_t> expected;
      for (uint32_t lane = 0; lane < 32; ++lane) {
        const bool votes = (mask >> lane & 1) != 0;
        expected.push_back(votes ? mask & yes : 99);
        expected.push_back(votes ? ((mask & yes) != 0 ? 1 : 0) : 99);
        expected.push_back(votes ? ((mask & ~yes) == 0 ? 1 : 0) : 99);
      }
      EXPECT_EQ(out.ToHost(), expected) << std::hex << mask << " " << yes;
    }
  }
}

QUIRE_KERNEL void WriteForTheWarp(int32_t* out) {
  QUIRE_SHARED_MEMORY(shared);
  auto* values = reinterpret_cast<int32_t*>(shared) + threadIdx.x / 32 * 32;
  const uint32_t lane = threadIdx.x % 32;
  values[lane] = static_cast<int32_t>(threadIdx.x);
  __syncwarp();
  out[threadIdx.x] = values[31 - lane];
}

TEST(WarpTest, WhatIsWrittenBeforeSyncwarpIsReadAfterIt) {
  DeviceArray<int32_t> out(64);

  ASSERT_EQ(QUIRE_LAUNCH(WriteForTheWarp, dim3(1), dim3(64), 256, nullptr, out.data()), 0);

  std::vector<int32_t> expected(64);
  for (int32_t i = 0; i < 64; ++i) {
    expected[static_cast<size_t>(i)] = i / 32 * 32 + 31 - i % 32;
  }
  EXPECT_EQ(out.ToHost(), expected);
}

QUIRE_KERNEL void Reduce(const float* in, float* out) {
  QUIRE_SHARED_MEMORY(shared);
  auto* scratch = reinterpret_cast<float*>(shared);
  const uint32_t thread = LinearThread();
  const uint32_t num_threads = blockDim.x * blockDim.y;
  out[thread] = WarpSum(in[thread]);
  out[num_threads + thread] = WarpMax(in[thread]);
  out[2 * num_threads + thread] = CtaSum(in[thread], scratch);
  out[3 * num_threads + thread] = CtaMax(in[thread], scratch);
}

TEST(WarpTest, SumsAndMaximaReachEveryThreadWithTheSameBits) {
  for (const size_t num_warps : {1, 3, 8}) {
    const size_t num_threads = 32 * num_warps;
    std::vector<float> in(num_threads);
    std::mt19937 random(static_cast<uint32_t>(num_warps));
    std::uniform_real_distribution<float> uniform(-2.0F, -1.0F);  // a maximum of 0 would be wrong
    std::generate(in.begin(), in.end(), [&] { return uniform(random); });
    DeviceArray<float> device_in(in);
    DeviceArray<float> device_out(static_cast<int64_t>(4 * num_threads));

    ASSERT_EQ(QUIRE_LAUNCH(Reduce,
                           dim3(1),
                           dim3(16, static_cast<uint32_t>(2 * num_warps)),
                           32 * 4,
                           nullptr,
                           device_in.data(),
                           device_out.data()),
              0);

    const std::vector<float> out = device_out.ToHost();
    double cta_sum = 0;
    float cta_max = -INFINITY;
    for (size_t warp = 0; warp < num_warps; ++warp) {
      double sum = 0;
      float max = -INFINITY;
      for (size_t i = 32 * warp; i < 32 * warp + 32; ++i) {
        sum += in[i];
        max = std::max(max, in[i]);
      }
      cta_sum += sum;
      cta_max = std::max(cta_max, max);
      for (size_t i = 32 * warp; i < 32 * warp + 32; ++i) {
        EXPECT_NEAR(out[i], sum, 1e-5);
        EXPECT_EQ(out[i], out[32 * warp]);
        EXPECT_EQ(out[num_threads + i], max);
      }
    }
    for (size_t i = 0; i < num_threads; ++i) {
      EXPECT_NEAR(out[2 * num_threads + i], cta_sum, 1e-4);
      EXPECT_EQ(out[2 * num_threads + i], out[2 * num_threads]);
      EXPECT_EQ(out[3 * num_threads + i], cta_max);
    }
  }
}

QUIRE_KERNEL void AddAtomically(int32_t* sum, float* float_sum, int32_t* max, uint32_t* min) {
  atomicAdd(sum, static_cast<int32_t>(threadIdx.x));
  atomicAdd(float_sum, 0.5F);
  atomicMax(max, static_cast<int32_t>(threadIdx.x) - 100);
  atomicMin(min, threadIdx.x + 7);
}

TEST(AtomicTest, UpdatesOfAllThreadsAndCtasAddUp) {
  DeviceArray<int32_t> sum(std::vector<int32_t>{1000});
  DeviceArray<float> float_sum(std::vector<float>{1.0F});
  DeviceArray<int32_t> max(std::vector<int32_t>{-1000});
  DeviceArray<uint32_t> min(std::vector<uint32_t>{0x80000000u});

  ASSERT_EQ(QUIRE_LAUNCH(AddAtomically,
                         dim3(4),
                         dim3(33),
                         0,
                         nullptr,
                         sum.data(),
                         float_sum.data(),
                         max.data(),
                         min.data()),
            0);

  EXPECT_EQ(sum.ToHost()[0], 1000 + 4 * 32 * 33 / 2);
  EXPECT_EQ(float_sum.ToHost()[0], 1.0F + 4 * 33 * 0.5F);
  EXPECT_EQ(max.ToHost()[0], 32 - 100);
  EXPECT_EQ(min.ToHost()[0], 7u);
}

}  // namespace
}  // namespace quire::gpu
