// Kernels that start early: what they do before their wait runs beside the operation before them.
#include "kernels/cuda/device/early_start.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

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
