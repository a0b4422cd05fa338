// Kernels that start early: what they do before their wait runs beside the operation before them.
#include "kernels/cuda/device/early_start.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/bulk_copy.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/seen_faults.h"

namespace quire::gpu {
namespace {

using emulator::FaultKind;

constexpr int kThreads = 64;
constexpr int kCtas = 3;
constexpr int kCount = kThreads * kCtas;
constexpr size_t kSharedBytes = 2 * kThreads * sizeof(float);

// Steps that a faulty kernel leaves out or does wrong.
enum class Bug : uint8_t { kNone, kNoWait, kReadsEarly, kWritesEarly, kOneCtaWaits };

QUIRE_KERNEL void Double(const float* in, float* out) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = 2.0F * in[i];
}

// out = weights * in. Weights are read before the wait. One thread waits for all of its CTA.
template <Bug kBug>
QUIRE_KERNEL void Scale(const float* weights, const float* in, float* out) {
  QUIRE_SHARED_MEMORY(shared);
  auto* kept = reinterpret_cast<float*>(shared);
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  kept[threadIdx.x] = weights[i];
  float value = in[i];
  if (kBug == Bug::kWritesEarly) {
    out[i] = 0.0F;
  }
  const bool waits = kBug == Bug::kOneCtaWaits ? blockIdx.x == 1 : kBug != Bug::kNoWait;
  if (waits && threadIdx.x == 5) {
    WaitForEarlierOperation();
  }
  __syncthreads();
  StartNext();
  if (kBug != Bug::kReadsEarly) {
    value = in[i];
  }
  out[i] = kept[threadIdx.x] * value;
}

enum class CopyKind : uint8_t { kAsync, kBulk };

// out = weights * in, both through copies to shared memory. Thread 0 copies by kBulk, each thread
// of the first 16 its 16 bytes by kAsync. The copies of the weights are in flight during the wait;
// so are those of `in` if kCopiesEarly.
template <CopyKind kKind, bool kCopiesEarly>
QUIRE_KERNEL void ScaleByCopies(const float* weights, const float* in, float* out) {
  QUIRE_SHARED_MEMORY(shared);
  constexpr int kBytes = kThreads * sizeof(float);
  auto* barrier = reinterpret_cast<SharedBarrier*>(shared + 2 * kBytes);
  const auto thread = static_cast<int>(threadIdx.x);
  const uint32_t first = blockIdx.x * blockDim.x;
  const auto copy = [&](const float* from, uint8_t* to) {
    if (kKind == CopyKind::kBulk && thread == 0) {
      CopyBulk(to, from + first, kBytes, *barrier);
    }
    if (kKind == CopyKind::kAsync && thread < kBytes / 16) {
      CopyAsync16(to + 16 * thread, from + first + 4 * thread, true);
    }
  };
  if (thread == 0) {
    barrier->Init(1);
    FenceAsyncProxy();
    barrier->ArriveAndExpect(kKind == CopyKind::kBulk ? 2 * kBytes : 0);
  }
  __syncthreads();
  copy(weights, shared);
  if (kCopiesEarly) {
    copy(in, shared + kBytes);
  }
  WaitForEarlierOperation();
  if (!kCopiesEarly) {
    copy(in, shared + kBytes);
  }
  CommitCopies();
  WaitCopies<0>();
  barrier->Wait(0);
  __syncthreads();
  const auto* values = reinterpret_cast<const float*>(shared);
  out[first + threadIdx.x] = values[thread] * values[kThreads + thread];
}

class EarlyStartTest : public testing::Test {
 protected:
  EarlyStartTest() {
    std::vector<float> numbers;
    std::vector<float> weights;
    for (int i = 0; i < kCount; ++i) {
      numbers.push_back(static_cast<float>(i + 1));
      weights.push_back(static_cast<float>(i % 7 + 1));
    }
    numbers_.FromHost(numbers);
    weights_.FromHost(weights);
    EXPECT_EQ(CreateStream(&stream_), 0);
  }
  ~EarlyStartTest() override { EXPECT_EQ(DestroyStream(stream_), 0); }

  // Enqueues three kernels, of which the second and the third start early.
  template <Bug kBug>
  void EnqueueChain() {
    ASSERT_EQ(QUIRE_LAUNCH(
                  Double, dim3(kCtas), dim3(kThreads), 0, stream_, numbers_.data(), first_.data()),
              0);
    ASSERT_EQ(QUIRE_LAUNCH_EARLY(Scale<kBug>,
                                 dim3(kCtas),
                                 dim3(kThreads),
                                 kSharedBytes,
                                 stream_,
                                 weights_.data(),
                                 first_.data(),
                                 second_.data()),
              0);
    ASSERT_EQ(QUIRE_LAUNCH_EARLY(Scale<Bug::kNone>,
                                 dim3(kCtas),
                                 dim3(kThreads),
                                 kSharedBytes,
                                 stream_,
                                 weights_.data(),
                                 second_.data(),
                                 first_.data()),
              0);
  }

  // Enqueues two kernels, of which the second starts early and copies. Returns its output.
  template <CopyKind kKind, bool kCopiesEarly>
  std::vector<float> ChainWithCopies() {
    // Only bytes that the first kernel changes are poisoned.
    EXPECT_EQ(FillBytes(first_.data(), 0xFF, kCount * sizeof(float), nullptr), 0);
    EXPECT_EQ(QUIRE_LAUNCH(
                  Double, dim3(kCtas), dim3(kThreads), 0, stream_, numbers_.data(), first_.data()),
              0);
    EXPECT_EQ(QUIRE_LAUNCH_EARLY((ScaleByCopies<kKind, kCopiesEarly>),
                                 dim3(kCtas),
                                 dim3(kThreads),
                                 kSharedBytes + sizeof(SharedBarrier),
                                 stream_,
                                 weights_.data(),
                                 first_.data(),
                                 second_.data()),
              0);
    EXPECT_EQ(Synchronize(stream_), 0);
    return second_.ToHost();
  }

  static float Weight(int i) { return static_cast<float>(i % 7 + 1); }

  // Checks the chain's result, and clears the arrays.
  void ExpectRight() {
    const std::vector<float> first = first_.ToHost();
    const std::vector<float> second = second_.ToHost();
    for (int i = 0; i < kCount; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(second[at], 2.0F * static_cast<float>(i + 1) * Weight(i)) << i;
      ASSERT_EQ(first[at], second[at] * Weight(i)) << i;
    }
    first_.FromHost(std::vector<float>(kCount));
    second_.FromHost(std::vector<float>(kCount));
  }

  template <Bug kBug>
  void ExpectFault(FaultKind kind) {
    const SeenFaults faults;
    EnqueueChain<kBug>();
    EXPECT_EQ(Synchronize(stream_), emulator::kErrorLaunchFailure);
    ASSERT_GE(faults.all().size(), 1U);
    EXPECT_EQ(faults.all()[0].kind, kind) << faults.all()[0].text;
    // The emulator still works after the fault.
    EnqueueChain<Bug::kNone>();
    EXPECT_EQ(Synchronize(stream_), 0);
    ExpectRight();
  }

  DeviceArray<float> numbers_{kCount};
  DeviceArray<float> weights_{kCount};
  DeviceArray<float> first_{kCount};
  DeviceArray<float> second_{kCount};
  Stream stream_ = nullptr;
};

TEST_F(EarlyStartTest, AfterItsWaitAKernelSeesTheResults) {
  EnqueueChain<Bug::kNone>();
  ASSERT_EQ(Synchronize(stream_), 0);
  ExpectRight();
}

TEST_F(EarlyStartTest, AGraphsKernelsStartEarlyToo) {
  Graph graph = nullptr;
  ASSERT_EQ(BeginGraph(stream_), 0);
  EnqueueChain<Bug::kReadsEarly>();
  ASSERT_EQ(EndGraph(stream_, &graph), 0);
  ASSERT_EQ(LaunchGraph(graph, stream_), 0);
  ASSERT_EQ(Synchronize(stream_), 0);
  const std::vector<float> second = second_.ToHost();
  EXPECT_TRUE(std::all_of(second.begin(), second.end(), [](float x) { return std::isnan(x); }));
  ASSERT_EQ(DestroyGraph(graph), 0);
}

TEST_F(EarlyStartTest, ResultsThatAreReadBeforeTheWaitAreNan) {
  EnqueueChain<Bug::kReadsEarly>();
  ASSERT_EQ(Synchronize(stream_), 0);
  const std::vector<float> second = second_.ToHost();
  EXPECT_TRUE(std::all_of(second.begin(), second.end(), [](float x) { return std::isnan(x); }));
}

// A copy lands only when it is waited for, but reads its source when it is started.
TEST_F(EarlyStartTest, CopiesOfResultsThatAreStartedBeforeTheWaitBringNan) {
  const auto all_nan = [](const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float x) { return std::isnan(x); });
  };
  EXPECT_TRUE(all_nan(ChainWithCopies<CopyKind::kBulk, true>()));
  EXPECT_TRUE(all_nan(ChainWithCopies<CopyKind::kAsync, true>()));
}

TEST_F(EarlyStartTest, CopiesOfWeightsMayBeInFlightDuringTheWait) {
  std::vector<float> expected;
  for (int i = 0; i < kCount; ++i) {
    expected.push_back(2.0F * static_cast<float>(i + 1) * Weight(i));
  }
  EXPECT_EQ((ChainWithCopies<CopyKind::kBulk, false>()), expected);
  EXPECT_EQ((ChainWithCopies<CopyKind::kAsync, false>()), expected);
}

TEST_F(EarlyStartTest, AWriteBeforeTheWaitIsAFault) {
  ExpectFault<Bug::kWritesEarly>(FaultKind::kEarlyWrite);
}

TEST_F(EarlyStartTest, EachCtaWaits) {
  ExpectFault<Bug::kNoWait>(FaultKind::kNoEarlierWait);
  ExpectFault<Bug::kOneCtaWaits>(FaultKind::kNoEarlierWait);
}

// A host that waits between two launches, and the first kernel of a stream.
TEST_F(EarlyStartTest, WithoutAnEarlierOperationTheWaitReturnsAtOnce) {
  const auto scale = [this](const float* in, float* out) {
    return QUIRE_LAUNCH_EARLY(Scale<Bug::kNone>,
                              dim3(kCtas),
                              dim3(kThreads),
                              kSharedBytes,
                              stream_,
                              weights_.data(),
                              in,
                              out);
  };
  ASSERT_EQ(scale(numbers_.data(), first_.data()), 0);
  ASSERT_EQ(Synchronize(stream_), 0);
  ASSERT_EQ(scale(first_.data(), second_.data()), 0);
  ASSERT_EQ(Synchronize(stream_), 0);
  const std::vector<float> second = second_.ToHost();
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(second[static_cast<size_t>(i)], static_cast<float>(i + 1) * Weight(i) * Weight(i));
  }
}

}  // namespace
}  // namespace quire::gpu
