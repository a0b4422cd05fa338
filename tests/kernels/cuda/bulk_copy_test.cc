// Bulk copies of the emulator: they land late, and each mistake with them is a fault or shows in
// the result.
#include "kernels/cuda/device/bulk_copy.h"

#include <cstdint>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/async_proxy.h"
#include "kernels/cuda/device/shared_barrier.h"
#include "kernels/cuda/device/warp.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/seen_faults.h"

namespace quire::gpu {
namespace {

using emulator::FaultKind;

constexpr int kSlots = 2;
constexpr int kRounds = 7;
constexpr int kSlotFloats = 128;
constexpr int kSlotBytes = kSlotFloats * 4;
constexpr int kConsumers = 64;
constexpr int kThreads = kConsumers + kWarpSize;
constexpr int kSharedBytes = kSlots * (kSlotBytes + 2 * int{sizeof(SharedBarrier)});

// Steps that a faulty kernel leaves out or does wrong.
enum class Bug : uint8_t {
  kNone,
  kNoInit,
  kNoInitFence,
  kNoExpect,
  kExpectsLess,
  kExpectsMore,
  kExpectsTooMany,
  kNoFullWait,
  kNoFreeWait,
  kFreesEarly,
  kHalfOfASlot,
  kMisalignedSize,
  kMisalignedShared,
  kMisalignedGlobal,
  kOutside,
  kWritesEarly,
  kCopiesOver,
  kOneMoreCopy,
};

// A warp copies kRounds buffers through a ring of kSlots, two copies each. Two other warps add them
// up, and overwrite each buffer as a kernel does that clears the rows past a sequence's end.
template <Bug kBug>
QUIRE_KERNEL void AddThroughRing(const float* in, float* out) {
  QUIRE_SHARED_MEMORY(shared);
  auto* const full = reinterpret_cast<SharedBarrier*>(shared + kSlots * kSlotBytes);
  auto* const free = full + kSlots;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (kBug != Bug::kNoInit) {
        full[slot].Init(1);
      }
      free[slot].Init(kConsumers);
    }
    if (kBug != Bug::kNoInitFence) {
      FenceAsyncProxy();
    }
  }
  __syncthreads();

  if (threadIdx.x >= kConsumers) {
    for (int round = 0; round < kRounds && threadIdx.x == kConsumers; ++round) {
      const int slot = round % kSlots;
      if (round >= kSlots && kBug != Bug::kNoFreeWait) {
        free[slot].Wait((round / kSlots - 1) & 1);
      }
      if (kBug == Bug::kNoExpect) {
        full[slot].Arrive();
      } else {
        full[slot].ArriveAndExpect(kBug == Bug::kExpectsLess      ? kSlotBytes - 16
                                   : kBug == Bug::kExpectsMore    ? kSlotBytes + 16
                                   : kBug == Bug::kExpectsTooMany ? 1 << 20
                                                                  : kSlotBytes);
      }
      const float* from = in + round * kSlotFloats + (kBug == Bug::kMisalignedGlobal ? 1 : 0);
      uint8_t* to = shared + (kBug == Bug::kOutside ? kSharedBytes - 16 : slot * kSlotBytes);
      to += kBug == Bug::kMisalignedShared ? 8 : 0;
      constexpr int kHalf = kSlotBytes / 2;
      CopyBulk(to, from, kBug == Bug::kMisalignedSize ? kHalf - 8 : kHalf, full[slot]);
      if (kBug == Bug::kWritesEarly) {
        reinterpret_cast<float*>(to)[3] = 0.0F;
      }
      if (kBug == Bug::kCopiesOver) {
        CopyAsync16(to + 16, from, true);
      }
      if (kBug != Bug::kHalfOfASlot) {
        CopyBulk(to + kHalf, from + kHalf / 4, kHalf, full[slot]);
      }
      if (kBug == Bug::kOneMoreCopy && round == kRounds - 1) {
        const int other = (slot + 1) % kSlots;
        free[other].Wait((round / kSlots - 1) & 1);
        CopyBulk(shared + other * kSlotBytes, from, 16, full[other]);
      }
    }
    return;
  }

  const int thread = static_cast<int>(threadIdx.x);
  float sums[2] = {};
  for (int round = 0; round < kRounds; ++round) {
    const int slot = round % kSlots;
    auto* const buffer = reinterpret_cast<float*>(shared + slot * kSlotBytes);
    if (kBug == Bug::kFreesEarly) {
      full[slot].Wait(round / kSlots & 1);
      free[slot].Arrive();
    } else if (kBug != Bug::kNoFullWait) {
      full[slot].Wait(round / kSlots & 1);
    }
    for (int i = 0; i < 2; ++i) {
      sums[i] += buffer[thread + i * kConsumers];
      buffer[thread + i * kConsumers] = 0.0F;
    }
    if (kBug != Bug::kFreesEarly) {
      FenceAsyncProxy();
      free[slot].Arrive();
    }
  }
  for (int i = 0; i < 2; ++i) {
    out[static_cast<int>(blockIdx.x) * kSlotFloats + thread + i * kConsumers] = sums[i];
  }
}

constexpr int kCtas = 3;  // each runs its warps in another order

class BulkCopyTest : public testing::Test {
 protected:
  BulkCopyTest() {
    std::vector<float> in;
    for (int i = 0; i < kRounds * kSlotFloats; ++i) {
      in.push_back(static_cast<float>(i % 97));
    }
    for (int i = 0; i < kSlotFloats; ++i) {
      float sum = 0.0F;
      for (int round = 0; round < kRounds; ++round) {
        sum += in[static_cast<size_t>(round * kSlotFloats + i)];
      }
      expected_.push_back(sum);
    }
    in_.FromHost(in);
  }

  template <Bug kBug>
  int Run(int num_ctas = kCtas) {
    return QUIRE_LAUNCH(AddThroughRing<kBug>,
                        dim3(static_cast<uint32_t>(num_ctas)),
                        dim3(kThreads),
                        kSharedBytes,
                        nullptr,
                        in_.data(),
                        out_.data());
  }

  bool IsRight() {
    const std::vector<float> out = out_.ToHost();
    bool is_right = true;
    for (size_t i = 0; i < out.size(); ++i) {
      is_right = is_right && out[i] == expected_[i % kSlotFloats];
    }
    return is_right;
  }

  template <Bug kBug>
  void ExpectFault(FaultKind kind) {
    const SeenFaults faults;
    EXPECT_EQ(Run<kBug>(), emulator::kErrorLaunchFailure);
    ASSERT_EQ(faults.all().size(), 1U);
    EXPECT_EQ(faults.all()[0].kind, kind) << faults.all()[0].text;
    // The emulator still works after the fault.
    EXPECT_EQ(Run<Bug::kNone>(), 0);
    EXPECT_TRUE(IsRight());
  }

 private:
  DeviceArray<float> in_{kRounds * kSlotFloats};
  DeviceArray<float> out_{kCtas * kSlotFloats};
  std::vector<float> expected_;
};

TEST_F(BulkCopyTest, CopiesLandBeforeTheirPhaseEnds) {
  ASSERT_EQ(Run<Bug::kNone>(), 0);
  EXPECT_TRUE(IsRight());
}

TEST_F(BulkCopyTest, TheBarrierIsInitializedAndFenced) {
  ExpectFault<Bug::kNoInit>(FaultKind::kNoBarrier);
  ExpectFault<Bug::kNoInitFence>(FaultKind::kMissingFence);
}

TEST_F(BulkCopyTest, APhaseExpectsTheBytesOfItsCopies) {
  ExpectFault<Bug::kNoExpect>(FaultKind::kWrongByteCount);
  ExpectFault<Bug::kExpectsLess>(FaultKind::kWrongByteCount);
  ExpectFault<Bug::kExpectsMore>(FaultKind::kDeadlock);
  ExpectFault<Bug::kHalfOfASlot>(FaultKind::kDeadlock);
  ExpectFault<Bug::kExpectsTooMany>(FaultKind::kWrongByteCount);
}

TEST_F(BulkCopyTest, AddressesAndSizesAreMultiplesOf16) {
  ExpectFault<Bug::kMisalignedSize>(FaultKind::kMisaligned);
  ExpectFault<Bug::kMisalignedShared>(FaultKind::kMisaligned);
  ExpectFault<Bug::kMisalignedGlobal>(FaultKind::kMisaligned);
}

TEST_F(BulkCopyTest, ACopyStaysInSharedMemory) {
  ExpectFault<Bug::kOutside>(FaultKind::kOutOfBounds);
}

TEST_F(BulkCopyTest, BytesInFlightAreLeftAlone) {
  ExpectFault<Bug::kWritesEarly>(FaultKind::kChangedInFlight);
  ExpectFault<Bug::kCopiesOver>(FaultKind::kCopyOverlap);
}

TEST_F(BulkCopyTest, ACtaEndsAfterItsCopies) {
  ExpectFault<Bug::kOneMoreCopy>(FaultKind::kCopyInFlight);
}

// In some order of the warps, either the copying thread runs ahead and copies over bytes in flight,
// or a reader sees bytes of another round or bytes in flight, which are NaN.
template <typename Launch>
void ExpectFaultOrWrongSums(Launch launch, const std::function<bool()>& is_right) {
  const SeenFaults faults;
  const int error = launch();
  EXPECT_TRUE(error == emulator::kErrorLaunchFailure || !is_right());
}

TEST_F(BulkCopyTest, AMissingWaitShows) {
  const auto is_right = [this] { return IsRight(); };
  ExpectFaultOrWrongSums([this] { return Run<Bug::kNoFullWait>(); }, is_right);
  ExpectFaultOrWrongSums([this] { return Run<Bug::kNoFreeWait>(); }, is_right);
  ExpectFaultOrWrongSums([this] { return Run<Bug::kFreesEarly>(); }, is_right);
}

}  // namespace
}  // namespace quire::gpu
