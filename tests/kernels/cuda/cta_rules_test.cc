// Orders of CTAs, and the watch of their accesses. Each planted bug is one of a fold by the last
// CTA to arrive, and passes where CTAs run in order and unwatched.
#include "kernels/cuda/emulator/cta_rules.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/atomic.h"
#include "kernels/cuda/device/portability.h"
#include "tests/kernels/cuda/chosen_cta_rules.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/seen_faults.h"

namespace quire::gpu {
namespace {

using emulator::CtaOrder;
using emulator::FaultKind;

constexpr int kCtas = 5;

enum class Bug : uint8_t { kNone, kEachFolds, kHighestFolds, kCountsBeforeItWrites, kRelaxed };

// Each CTA writes its number. The last CTA to arrive writes the sum of all numbers, and sets the
// counter back.
template <Bug kBug>
QUIRE_KERNEL void AddUpNumbers(int32_t* numbers, int32_t* num_arrived, int32_t* sum) {
  const auto cta = static_cast<int32_t>(blockIdx.x);
  if (kBug != Bug::kCountsBeforeItWrites) {
    numbers[cta] = 100 + cta;
  }
  const int32_t before =
      kBug == Bug::kRelaxed ? atomicAdd(num_arrived, 1) : AddAcquireRelease(num_arrived, 1);
  if (kBug == Bug::kCountsBeforeItWrites) {
    numbers[cta] = 100 + cta;
  }
  const bool is_last = kBug == Bug::kEachFolds      ? true
                       : kBug == Bug::kHighestFolds ? cta == kCtas - 1
                                                    : before == kCtas - 1;
  if (is_last) {
    int32_t all = 0;
    for (int i = 0; i < kCtas; ++i) {
      all += numbers[i];
    }
    *sum = all;
  }
  if (before == kCtas - 1) {
    *num_arrived = 0;
  }
}

constexpr int32_t kSum = 100 * kCtas + kCtas * (kCtas - 1) / 2;

template <Bug kBug>
int32_t Sum() {
  DeviceArray<int32_t> numbers(std::vector<int32_t>(kCtas, 0));
  DeviceArray<int32_t> num_arrived(std::vector<int32_t>{0});
  DeviceArray<int32_t> sum(std::vector<int32_t>{0});
  (void)QUIRE_LAUNCH(AddUpNumbers<kBug>,
                     dim3(kCtas),
                     dim3(1),
                     0,
                     nullptr,
                     numbers.data(),
                     num_arrived.data(),
                     sum.data());
  return sum.ToHost()[0];
}

// Writes down which CTA ran as which.
QUIRE_KERNEL void CountOff(int32_t* next, int32_t* turns) {
  turns[blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)] = atomicAdd(next, 1);
}

std::vector<int32_t> Turns() {
  constexpr dim3 kGrid(4, 3, 2);
  DeviceArray<int32_t> next(std::vector<int32_t>{0});
  DeviceArray<int32_t> turns(24);
  EXPECT_EQ(QUIRE_LAUNCH(CountOff, kGrid, dim3(1), 0, nullptr, next.data(), turns.data()), 0);
  return turns.ToHost();
}

TEST(CtaRulesTest, EachCtaRunsOnceInEachOrder) {
  const std::vector<int32_t> forward = Turns();
  ASSERT_TRUE(std::is_sorted(forward.begin(), forward.end()));
  std::vector<std::vector<int32_t>> orders = {forward};
  {
    const ChosenCtaRules rules({.order = CtaOrder::kBackward});
    orders.push_back(Turns());
    EXPECT_TRUE(std::is_sorted(orders[1].rbegin(), orders[1].rend()));
  }
  for (uint64_t seed : {1, 2, 3}) {
    const ChosenCtaRules rules({.order = CtaOrder::kShuffled, .seed = seed});
    orders.push_back(Turns());
  }
  for (size_t i = 0; i < orders.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      EXPECT_NE(orders[i], orders[k]) << i << ", " << k;
    }
    std::sort(orders[i].begin(), orders[i].end());
  }
  for (const std::vector<int32_t>& order : orders) {
    EXPECT_EQ(order, forward);
  }
}

TEST(CtaRulesTest, TheLastToArriveMayFoldInAnyOrder) {
  EXPECT_EQ(Sum<Bug::kNone>(), kSum);
  for (const CtaOrder order : {CtaOrder::kForward, CtaOrder::kBackward, CtaOrder::kShuffled}) {
    const ChosenCtaRules rules({.order = order, .seed = 3, .watches_memory = true});
    EXPECT_EQ(Sum<Bug::kNone>(), kSum);
  }
}

TEST(CtaRulesTest, AFoldByEachCtaIsFoundByTheWatchAlone) {
  EXPECT_EQ(Sum<Bug::kEachFolds>(), kSum);
  const SeenFaults faults;
  {
    const ChosenCtaRules rules({.order = CtaOrder::kBackward});
    EXPECT_EQ(Sum<Bug::kEachFolds>(), kSum);
  }
  ASSERT_TRUE(faults.all().empty());
  const ChosenCtaRules rules({.watches_memory = true});
  Sum<Bug::kEachFolds>();
  ASSERT_EQ(faults.all().size(), 1U);
  EXPECT_EQ(faults.all()[0].kind, FaultKind::kWrittenTwice) << faults.all()[0].text;
}

TEST(CtaRulesTest, NumbersThatAreWrittenAfterTheCountAreFoundByTheWatch) {
  EXPECT_EQ(Sum<Bug::kCountsBeforeItWrites>(), kSum);
  const ChosenCtaRules rules({.watches_memory = true});
  EXPECT_NE(Sum<Bug::kCountsBeforeItWrites>(), kSum);
}

TEST(CtaRulesTest, ACounterThatDoesNotOrderCtasIsFoundByTheWatch) {
  EXPECT_EQ(Sum<Bug::kRelaxed>(), kSum);
  const ChosenCtaRules rules({.watches_memory = true});
  EXPECT_NE(Sum<Bug::kRelaxed>(), kSum);
}

TEST(CtaRulesTest, AfterAWatchedLaunchAllChangesAreThere) {
  const ChosenCtaRules rules({.order = CtaOrder::kShuffled, .watches_memory = true});
  std::vector<int32_t> turns = Turns();
  std::sort(turns.begin(), turns.end());
  for (size_t i = 0; i < turns.size(); ++i) {
    EXPECT_EQ(turns[i], static_cast<int32_t>(i));
  }
}

TEST(CtaRulesTest, AFoldByTheHighestCtaIsFoundByAnotherOrder) {
  EXPECT_EQ(Sum<Bug::kHighestFolds>(), kSum);
  const ChosenCtaRules rules({.order = CtaOrder::kBackward});
  EXPECT_NE(Sum<Bug::kHighestFolds>(), kSum);
}

}  // namespace
}  // namespace quire::gpu
