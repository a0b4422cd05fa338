// What kernels call, against plain loops: the thread model, collectives, conversions, matrix and
// copy instructions, and the faults that the emulator reports.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/tensor_core.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warp.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/sanitizer.h"

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

TEST(MathTest, FunctionsHaveTheirValues) {
  for (float x = -20.0F; x < 20.0F; x += 0.37F) {
    EXPECT_NEAR(Exp2(x) / std::exp2(static_cast<double>(x)), 1.0, 1e-6);
    EXPECT_NEAR(Exp(x) / std::exp(static_cast<double>(x)), 1.0, 1e-6);
    EXPECT_NEAR(Tanh(x), std::tanh(static_cast<double>(x)), 1e-6);
    EXPECT_NEAR(Erf(x), std::erf(static_cast<double>(x)), 1e-6);
    const float positive = x + 20.5F;
    EXPECT_NEAR(Log(positive), std::log(static_cast<double>(positive)), 1e-6);
    EXPECT_NEAR(Rsqrt(positive) * std::sqrt(static_cast<double>(positive)), 1.0, 1e-6);
  }
  EXPECT_EQ(Exp2(-INFINITY), 0.0F);
}

// ---- Conversions ----

// A format of sign, exponent and mantissa, its values calculated from the definition. Magnitudes
// ascend with their bits.
struct Format {
  int mantissa_bits;
  int bias;
  uint32_t largest;     // the bits of the largest finite magnitude
  bool has_infinity;    // the bits after it; every magnitude above those is NaN
  uint32_t num_values;  // magnitudes, all kinds
};
constexpr Format kBf16Format{7, 127, 0x7F7F, true, 0x8000};
constexpr Format kF16Format{10, 15, 0x7BFF, true, 0x8000};
constexpr Format kF8Format{3, 7, 0x7E, false, 0x80};

double ValueOf(const Format& format, uint32_t magnitude) {
  const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const auto mantissa = static_cast<int>(magnitude & ((1u << format.mantissa_bits) - 1));
  const int implied = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  return std::ldexp(mantissa + implied, std::max(exponent, 1) - format.bias - format.mantissa_bits);
}

template <typename T>
void ExpectEveryPatternToFloat(const Format& format) {
  for (uint32_t bits = 0; bits < 2 * format.num_values; ++bits) {
    const uint32_t magnitude = bits % format.num_values;
    const bool negative = bits >= format.num_values;
    const float value = ToFloat(T{static_cast<decltype(T::bits)>(bits)});
    if (magnitude <= format.largest) {
      ASSERT_EQ(value, (negative ? -1 : 1) * ValueOf(format, magnitude)) << bits;
      ASSERT_EQ(std::signbit(value), negative) << bits;
    } else if (format.has_infinity && magnitude == format.largest + 1) {
      ASSERT_EQ(value, negative ? -INFINITY : INFINITY) << bits;
    } else {
      ASSERT_TRUE(std::isnan(value)) << bits;
    }
  }
}

TEST(ElementTest, EveryPatternHasItsValueInFp32) {
  ExpectEveryPatternToFloat<Bf16>(kBf16Format);
  ExpectEveryPatternToFloat<F16>(kF16Format);
  ExpectEveryPatternToFloat<F8E4M3>(kF8Format);
}

template <typename T>
uint32_t BitsFromFloat(float value) {
  return FromFloat<T>(value).bits;
}

// Each value, the middle between it and the next, and the fp32 numbers next to the middle, with
// both signs.
template <typename T>
void ExpectRoundingToNearest(const Format& format) {
  const uint32_t above_largest = format.has_infinity ? format.largest + 1 : format.largest;
  for (uint32_t magnitude = 0; magnitude <= format.largest; ++magnitude) {
    const double value = ValueOf(format, magnitude);
    const double next = ValueOf(format, magnitude + 1);
    const auto middle = static_cast<float>((value + next) / 2);
    ASSERT_EQ(middle, (value + next) / 2) << "the middle is not exact in fp32";
    const uint32_t up = magnitude == format.largest ? above_largest : magnitude + 1;
    const uint32_t even = magnitude % 2 == 0 ? magnitude : up;
    for (const uint32_t sign : {0u, format.num_values}) {
      const float factor = sign == 0 ? 1.0F : -1.0F;
      ASSERT_EQ(BitsFromFloat<T>(factor * static_cast<float>(value)), sign | magnitude);
      ASSERT_EQ(BitsFromFloat<T>(factor * middle), sign | even) << magnitude;
      ASSERT_EQ(BitsFromFloat<T>(factor * std::nextafter(middle, 0.0F)), sign | magnitude);
      ASSERT_EQ(BitsFromFloat<T>(factor * std::nextafter(middle, INFINITY)), sign | up);
    }
  }
  for (const uint32_t sign : {0u, format.num_values}) {
    const float factor = sign == 0 ? 1.0F : -1.0F;
    EXPECT_EQ(BitsFromFloat<T>(factor * INFINITY), sign | above_largest);
    EXPECT_EQ(BitsFromFloat<T>(factor * std::numeric_limits<float>::max()), sign | above_largest);
    EXPECT_EQ(BitsFromFloat<T>(factor * std::numeric_limits<float>::denorm_min()), sign);
  }
}

TEST(ElementTest, RoundingIsToNearestTiesToEven) {
  ExpectRoundingToNearest<Bf16>(kBf16Format);
  ExpectRoundingToNearest<F16>(kF16Format);
  ExpectRoundingToNearest<F8E4M3>(kF8Format);
}

TEST(ElementTest, Float8SaturatesInsteadOfBecomingNan) {
  EXPECT_EQ(BitsFromFloat<F8E4M3>(449.0F), 0x7Eu);
  EXPECT_EQ(BitsFromFloat<F8E4M3>(464.0F), 0x7Eu);
  EXPECT_EQ(BitsFromFloat<F8E4M3>(465.0F), 0x7Eu);
  EXPECT_EQ(BitsFromFloat<F8E4M3>(-1e30F), 0xFEu);
  EXPECT_EQ(ToFloat(F8E4M3{0x7E}), 448.0F);
}

TEST(ElementTest, NanStaysNan) {
  for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFF800001u, 0xFFFFFFFFu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(ToFloat(FromFloat<Bf16>(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(ToFloat(FromFloat<F16>(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(ToFloat(FromFloat<F8E4M3>(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(FromFloat<float>(nan)));
  }
}

TEST(ElementTest, PairsHoldTheFirstNumberInTheLowerHalf) {
  EXPECT_EQ(Pack2<Bf16>(1.0F, -2.0F), 0xC0003F80u);
  EXPECT_EQ(Pack2<F16>(1.0F, -2.0F), 0xC0003C00u);
  EXPECT_EQ(PackF8(1.0F, -2.0F), 0xC038u);
  EXPECT_EQ(Unpack2<Bf16>(0xC0003F80u).x, 1.0F);
  EXPECT_EQ(Unpack2<Bf16>(0xC0003F80u).y, -2.0F);
  EXPECT_EQ(Unpack2<F16>(0xC0003C00u).x, 1.0F);
  EXPECT_EQ(Unpack2<F16>(0xC0003C00u).y, -2.0F);
}

TEST(ElementTest, PairsOfFloat8BecomePairsOfFloat16OfEqualValue) {
  for (uint32_t pair = 0; pair < 0x10000; ++pair) {
    const float2 halves = Unpack2<F16>(F8x2ToF16x2(static_cast<uint16_t>(pair)));
    const float low = ToFloat(F8E4M3{static_cast<uint8_t>(pair)});
    const float high = ToFloat(F8E4M3{static_cast<uint8_t>(pair >> 8)});
    ASSERT_TRUE(halves.x == low || (std::isnan(halves.x) && std::isnan(low))) << pair;
    ASSERT_TRUE(halves.y == high || (std::isnan(halves.y) && std::isnan(high))) << pair;
  }
}

template <typename T, int N>
QUIRE_KERNEL void CopyByVectors(const T* in, T* out) {
  float values[N];
  LoadVector<T, N>(in + threadIdx.x * N, values);
  for (float& value : values) {
    value *= 2;
  }
  StoreVector<T, N>(out + threadIdx.x * N, values);
}

template <typename T, int N>
void ExpectDoubled() {
  std::vector<T> in;
  std::vector<T> expected;
  for (int i = 0; i < 5 * N; ++i) {
    in.push_back(FromFloat<T>(static_cast<float>(i - 9) / 8));
    expected.push_back(FromFloat<T>(ToFloat(in.back()) * 2));
  }
  DeviceArray<T> device_in(in);
  DeviceArray<T> device_out(5 * N);

  ASSERT_EQ(
      QUIRE_LAUNCH(
          (CopyByVectors<T, N>), dim3(1), dim3(5), 0, nullptr, device_in.data(), device_out.data()),
      0);

  const std::vector<T> out = device_out.ToHost();
  EXPECT_EQ(memcmp(out.data(), expected.data(), expected.size() * sizeof(T)), 0);
}

TEST(VectorTest, LoadsAndStoresKeepTheOrderOfElements) {
  ExpectDoubled<Bf16, 4>();
  ExpectDoubled<Bf16, 8>();
  ExpectDoubled<F16, 8>();
  ExpectDoubled<F16, 16>();
  ExpectDoubled<F8E4M3, 8>();
  ExpectDoubled<F8E4M3, 16>();
  ExpectDoubled<float, 2>();
  ExpectDoubled<float, 4>();
  ExpectDoubled<float, 8>();
}

TEST(DispatchTest, TypesAndHeadDimsReachTheTemplateAndOthersAreUnsupported) {
  const auto size = [](DType dtype) {
    return DispatchElementOrFloat(dtype, []<typename T>() { return static_cast<int>(sizeof(T)); });
  };
  EXPECT_EQ(size(DType::kF32), 4);
  EXPECT_EQ(size(DType::kBF16), 2);
  EXPECT_EQ(size(DType::kF8E4M3), kUnsupported);
  const auto sizes = [](DType dtype, DType cache_dtype) {
    return DispatchCacheElement(dtype, cache_dtype, []<typename T, typename Cache>() {
      return static_cast<int>(10 * sizeof(T) + sizeof(Cache)) + (std::is_same_v<T, F16> ? 100 : 0);
    });
  };
  EXPECT_EQ(sizes(DType::kBF16, DType::kBF16), 22);
  EXPECT_EQ(sizes(DType::kF16, DType::kF16), 122);
  EXPECT_EQ(sizes(DType::kF16, DType::kF8E4M3), 121);
  EXPECT_EQ(sizes(DType::kF16, DType::kBF16), kUnsupported);
  EXPECT_EQ(sizes(DType::kF32, DType::kF32), kUnsupported);
  for (const int32_t head_dim : {64, 80, 96, 112, 128, 256}) {
    EXPECT_EQ(DispatchHeadDim(head_dim, []<int kHeadDim>() { return kHeadDim; }), head_dim);
  }
  EXPECT_EQ(DispatchHeadDim(72, []<int kHeadDim>() { return kHeadDim; }), kUnsupported);
}

// ---- Matrices ----

// Row r of the four matrices, one after the other, is at 16 * (37 * r % 32): rows in no order.
QUIRE_KERNEL void LoadMatrices(const uint16_t* in, uint32_t* out, uint32_t* out_transposed) {
  QUIRE_SHARED_MEMORY(shared);
  uint8_t* row = shared + 16 * (37 * threadIdx.x % 32);
  memcpy(row, in + 8 * threadIdx.x, 16);
  __syncwarp();
  uint32_t r[4];
  LoadMatrixX4(r, row);
  memcpy(out + 4 * threadIdx.x, r, 16);
  LoadMatrixX4Transposed(r, row);
  memcpy(out_transposed + 4 * threadIdx.x, r, 16);
}

TEST(MatrixTest, LoadMatrixGivesEachLaneItsFragment) {
  std::vector<uint16_t> in(4 * 8 * 8);
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<uint16_t>(1000 + i);
  }
  DeviceArray<uint16_t> device_in(in);
  DeviceArray<uint32_t> out(128);
  DeviceArray<uint32_t> out_transposed(128);

  ASSERT_EQ(QUIRE_LAUNCH(LoadMatrices,
                         dim3(1),
                         dim3(32),
                         512,
                         nullptr,
                         device_in.data(),
                         out.data(),
                         out_transposed.data()),
            0);

  std::vector<uint32_t> expected;
  std::vector<uint32_t> expected_transposed;
  for (size_t lane = 0; lane < 32; ++lane) {
    for (size_t matrix = 0; matrix < 4; ++matrix) {
      const auto at = [&](size_t row, size_t column) {
        return uint32_t{in[64 * matrix + 8 * row + column]};
      };
      const size_t g = lane / 4;
      const size_t t = lane % 4;
      expected.push_back(at(g, 2 * t) | at(g, 2 * t + 1) << 16);
      expected_transposed.push_back(at(2 * t, g) | at(2 * t + 1, g) << 16);
    }
  }
  EXPECT_EQ(out.ToHost(), expected);
  EXPECT_EQ(out_transposed.ToHost(), expected_transposed);
}

// c += a * b; a [16, 16], b [16, 8], c [16, 8], all row by row.
template <typename T>
QUIRE_KERNEL void Multiply(const T* a, const T* b, float* c) {
  const uint32_t g = threadIdx.x / 4;
  const uint32_t t = threadIdx.x % 4;
  const auto pair = [](T low, T high) { return low.bits | static_cast<uint32_t>(high.bits) << 16; };
  uint32_t a_fragment[4];
  for (uint32_t r = 0; r < 4; ++r) {
    const T* from = a + 16 * (g + 8 * (r & 1)) + 2 * t + 8 * (r >> 1);
    a_fragment[r] = pair(from[0], from[1]);
  }
  uint32_t b_fragment[2];
  for (uint32_t r = 0; r < 2; ++r) {
    const T* from = b + 8 * (2 * t + 8 * r) + g;
    b_fragment[r] = pair(from[0], from[8]);
  }
  float d[4];
  for (uint32_t r = 0; r < 4; ++r) {
    d[r] = c[8 * (g + 8 * (r >> 1)) + 2 * t + (r & 1)];
  }
  Mma16816<T>(d, a_fragment, b_fragment);
  for (uint32_t r = 0; r < 4; ++r) {
    c[8 * (g + 8 * (r >> 1)) + 2 * t + (r & 1)] = d[r];
  }
}

template <typename T>
std::vector<float> MultiplyOnDevice(const std::vector<T>& a,
                                    const std::vector<T>& b,
                                    const std::vector<float>& c) {
  DeviceArray<T> device_a(a);
  DeviceArray<T> device_b(b);
  DeviceArray<float> device_c(c);
  EXPECT_EQ(QUIRE_LAUNCH(Multiply<T>,
                         dim3(1),
                         dim3(32),
                         0,
                         nullptr,
                         device_a.data(),
                         device_b.data(),
                         device_c.data()),
            0);
  return device_c.ToHost();
}

template <typename T>
void ExpectProduct(uint32_t seed, bool integers) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&] { return integers ? std::nearbyint(normal(random) * 8) : normal(random); };
  std::vector<T> a(16 * 16);
  std::vector<T> b(16 * 8);
  std::vector<float> c(16 * 8);
  std::generate(a.begin(), a.end(), [&] { return FromFloat<T>(draw()); });
  std::generate(b.begin(), b.end(), [&] { return FromFloat<T>(draw()); });
  std::generate(c.begin(), c.end(), draw);

  const std::vector<float> product = MultiplyOnDevice(a, b, c);

  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      double expected = c[8 * row + column];
      for (size_t k = 0; k < 16; ++k) {
        expected += double{ToFloat(a[16 * row + k])} * ToFloat(b[8 * k + column]);
      }
      // Small integers leave nothing to round.
      ASSERT_NEAR(product[8 * row + column], expected, integers ? 0.0 : 1e-5);
    }
  }
}

TEST(MatrixTest, MmaMultipliesAndAdds) {
  for (uint32_t seed = 0; seed < 3; ++seed) {
    ExpectProduct<Bf16>(seed, true);
    ExpectProduct<F16>(seed, true);
    ExpectProduct<Bf16>(seed, false);
    ExpectProduct<F16>(seed, false);
  }
}

// Every 16-bit pattern goes through the conversion of the multiplication once, as a times 1.
template <typename T>
void ExpectMmaToReadEveryPattern() {
  std::vector<T> identity(16 * 8, FromFloat<T>(0.0F));
  for (size_t k = 0; k < 8; ++k) {
    identity[8 * k + k] = FromFloat<T>(1.0F);
  }
  // A row that holds an infinity or NaN would spread it over its zeros: those patterns are tested
  // alone in their row below.
  std::vector<T> a(16 * 16, FromFloat<T>(0.0F));
  for (uint32_t first = 0; first < 0x10000; first += 128) {
    for (uint32_t i = 0; i < 128; ++i) {
      T value{static_cast<uint16_t>(first + i)};
      a[16 * (i / 8) + i % 8] = std::isfinite(ToFloat(value)) ? value : FromFloat<T>(0.0F);
    }
    const std::vector<float> product = MultiplyOnDevice(a, identity, std::vector<float>(16 * 8));
    for (uint32_t i = 0; i < 128; ++i) {
      ASSERT_EQ(product[i], ToFloat(a[16 * (i / 8) + i % 8])) << first + i;
    }
  }
}

TEST(MatrixTest, MmaReadsEveryFinitePattern) {
  if (kUnderTsan) {
    GTEST_SKIP() << "a thousand launches of one warp: too slow under TSan";
  }
  ExpectMmaToReadEveryPattern<Bf16>();
  ExpectMmaToReadEveryPattern<F16>();
}

template <typename T>
void ExpectMmaToSpreadNonFinite() {
  const std::vector<T> ones(16 * 8, FromFloat<T>(1.0F));
  std::vector<T> a(16 * 16, FromFloat<T>(1.0F));
  a[16 * 2 + 5] = FromFloat<T>(INFINITY);
  a[16 * 9 + 15] = FromFloat<T>(-INFINITY);
  a[16 * 12] = FromFloat<T>(NAN);

  const std::vector<float> product = MultiplyOnDevice(a, ones, std::vector<float>(16 * 8));

  for (size_t column = 0; column < 8; ++column) {
    EXPECT_EQ(product[8 * 2 + column], INFINITY);
    EXPECT_EQ(product[8 * 9 + column], -INFINITY);
    EXPECT_TRUE(std::isnan(product[8 * 12 + column]));
    EXPECT_EQ(product[8 * 3 + column], 16.0F);
  }
}

TEST(MatrixTest, MmaSpreadsInfinityAndNanOverTheirRows) {
  ExpectMmaToSpreadNonFinite<Bf16>();
  ExpectMmaToSpreadNonFinite<F16>();
}

TEST(MatrixTest, BytePermutePicksBytes) {
  EXPECT_EQ(BytePermute(0x33221100, 0x77665544, 0x3210), 0x33221100u);
  EXPECT_EQ(BytePermute(0x33221100, 0x77665544, 0x7654), 0x77665544u);
  EXPECT_EQ(BytePermute(0x33221100, 0x77665544, 0x0527), 0x00552277u);
  EXPECT_EQ(BytePermute(0x33221100, 0x77665544, 0x8888), 0x00000000u);
}

// ---- Asynchronous copies ----

// The first bytes of the four 16-byte places before and after each wait.
QUIRE_KERNEL void CopyInGroups(const uint8_t* in, uint8_t* seen) {
  QUIRE_SHARED_MEMORY(shared);
  const auto look = [&] {
    for (int i = 0; i < 4; ++i) {
      *seen++ = shared[16 * i];
      *seen++ = shared[16 * i + 15];
    }
  };
  memset(shared, 1, 64);
  CopyAsync16(shared, in, true);
  CopyAsync16(shared + 16, in + 16, true);
  CommitCopies();
  CopyAsync16(shared + 32, nullptr, false);
  CommitCopies();
  CopyAsync16(shared + 48, in + 48, true);
  look();
  WaitCopies<1>();
  look();
  WaitCopies<0>();
  look();
  CommitCopies();
  WaitCopies<1>();
  look();
  WaitCopies<0>();
  look();
}

TEST(AsyncCopyTest, CopiesLandWhenTheirGroupIsWaitedForAndArePoisonBefore) {
  std::vector<uint8_t> in(64);
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<uint8_t>(100 + i);
  }
  DeviceArray<uint8_t> device_in(in);
  DeviceArray<uint8_t> seen(40);

  ASSERT_EQ(
      QUIRE_LAUNCH(CopyInGroups, dim3(1), dim3(1), 64, nullptr, device_in.data(), seen.data()), 0);

  const std::vector<uint8_t> expected = {
      255, 255, 255, 255, 255, 255, 255, 255,  // nothing has landed
      100, 115, 116, 131, 255, 255, 255, 255,  // all groups but the latest
      100, 115, 116, 131, 0,   0,   255, 255,  // all groups; the last copy is in none yet
      100, 115, 116, 131, 0,   0,   255, 255,  // it is the latest now
      100, 115, 116, 131, 0,   0,   148, 163,
  };
  EXPECT_EQ(seen.ToHost(), expected);
}

QUIRE_KERNEL void ChangeSourceMeanwhile(int32_t* source, int32_t* out) {
  QUIRE_SHARED_MEMORY(shared);
  CopyAsync16(shared, source, true);
  CommitCopies();
  source[1] = 5;
  WaitCopies<0>();
  memcpy(out, shared, 16);
}

TEST(AsyncCopyTest, TheSourceIsReadLate) {
  DeviceArray<int32_t> source(std::vector<int32_t>{1, 2, 3, 4});
  DeviceArray<int32_t> out(4);

  ASSERT_EQ(
      QUIRE_LAUNCH(ChangeSourceMeanwhile, dim3(1), dim3(1), 16, nullptr, source.data(), out.data()),
      0);

  EXPECT_EQ(out.ToHost(), (std::vector<int32_t>{1, 5, 3, 4}));
}

// ---- Faults ----

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
    EXPECT_TRUE(fault.file.ends_with("emulator_test.cc")) << fault.file;
    EXPECT_NE(fault.text.find(kernel), std::string::npos) << fault.text;
    EXPECT_NE(fault.text.find("emulator_test.cc:" + std::to_string(line)), std::string::npos)
        << fault.text;
    // The emulator is none the worse.
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
  EXPECT_NE(text.find("emulator_test.cc:" + std::to_string(kLonelyBarrierLine)), std::string::npos)
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
               ".*emulator_test.cc");
}

}  // namespace
}  // namespace quire::gpu
