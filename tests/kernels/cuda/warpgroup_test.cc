// Products of a warpgroup under the emulator. Each layout in shared memory gives the right product,
// and each wrong order of calls is found. The layouts are written down here a second time, as
// exchanges of an offset's bits, after CUTLASS's canonical layouts.
#include "kernels/cuda/device/warpgroup.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/named_barrier.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/shared_barrier.h"
#include "kernels/cuda/emulator/emulator.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

using emulator::FaultKind;

constexpr int kDepth = 16;

template <typename T>
uint16_t Bits(int value) {
  return FromFloat<T>(static_cast<float>(value)).bits;
}

// ---- Layouts ------------------------------------------------------------------------------------

// A matrix of rows x columns in shared memory, columns contiguous, as a descriptor says it. In
// bytes: atoms of 8 rows and swizzle_bytes lie row_stride apart downwards and column_stride apart
// along.
struct Layout {
  int swizzle_log2;  // of swizzle_bytes / 16: 3: 128 bytes, 2: 64, 1: 32, 0: no swizzle
  uint64_t mode;     // of the descriptor
  int row_stride;
  int column_stride;

  QUIRE_DEVICE int Offset(int row, int column) const {
    const int atom_bytes = 16 << swizzle_log2;
    const int byte = column * 2;
    int offset = row / 8 * row_stride + byte / atom_bytes * column_stride + row % 8 * atom_bytes +
                 byte % atom_bytes;
    for (int bit = 0; bit < swizzle_log2; ++bit) {
      offset ^= ((offset >> (7 + bit)) & 1) << (4 + bit);
    }
    return offset;
  }
};

// [64, columns] = a[64, 16] b[16, columns].
struct Problem {
  Layout a;  // K contiguous
  Layout b;  // [columns, 16] where b_is_column_major, else [16, columns]
  bool b_is_column_major;
  int columns;
  bool accumulates;
};

int NumberA(int row, int k) { return (row * 7 + k * 3) % 9 - 4; }
int NumberB(int k, int column) { return (k * 5 + column * 11 + column / 8) % 7 - 3; }

uint64_t Describe(const uint8_t* matrix, const Layout& layout, int leading, int stride) {
  return SharedAddress(matrix) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | layout.mode << 62;
}

template <typename T, int kColumns>
QUIRE_KERNEL void Multiply(const Problem problem, float* out) {
  constexpr int kMatrixBytes = 32 * 1024;
  QUIRE_SHARED_MEMORY(shared);
  shared += -SharedAddress(shared) & 1023;
  uint8_t* const a = shared;
  uint8_t* const b = shared + kMatrixBytes;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 64 * kDepth; i += 128) {
    const uint16_t bits = Bits<T>(NumberA(i / kDepth, i % kDepth));
    std::memcpy(a + problem.a.Offset(i / kDepth, i % kDepth), &bits, 2);
  }
  for (int i = thread; i < kColumns * kDepth; i += 128) {
    const int column = i / kDepth;
    const int k = i % kDepth;
    const uint16_t bits = Bits<T>(NumberB(k, column));
    const int offset =
        problem.b_is_column_major ? problem.b.Offset(column, k) : problem.b.Offset(k, column);
    std::memcpy(b + offset, &bits, 2);
  }
  __syncthreads();

  // A descriptor's leading stride is along the contiguous side, and its other stride across it.
  // They are exchanged for matrices without a swizzle whose M or N is contiguous.
  const bool is_reversed = !problem.b_is_column_major && problem.b.mode == 0;
  float d[kColumns / 8][4];
  for (auto& tile : d) {
    for (float& number : tile) {
      number = 1000.0F;
    }
  }
  FenceWarpgroup();
  emulator::RunWgmma(
      {.d = &d[0][0],
       .a_descriptor = Describe(a, problem.a, problem.a.column_stride, problem.a.row_stride),
       .b_descriptor = is_reversed
                           ? Describe(b, problem.b, problem.b.row_stride, problem.b.column_stride)
                           : Describe(b, problem.b, problem.b.column_stride, problem.b.row_stride),
       .num_columns = kColumns,
       .b_is_column_major = problem.b_is_column_major,
       .accumulates = problem.accumulates,
       .is_bf16 = std::is_same_v<T, Bf16>},
      SourceLine::Here());
  CommitProducts();
  WaitProducts<0>();
  for (int n = 0; n < kColumns / 8; ++n) {
    for (int r = 0; r < 4; ++r) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * (r >> 1);
      const int column = 8 * n + thread % 4 * 2 + (r & 1);
      out[row * kColumns + column] = d[n][r];
    }
  }
}

template <typename T, int kColumns>
void ExpectProduct(const Problem& problem) {
  DeviceArray<float> out(64 * kColumns);
  ASSERT_EQ(QUIRE_LAUNCH((Multiply<T, kColumns>),
                         dim3(1),
                         dim3(128),
                         size_t{65 * 1024},
                         nullptr,
                         problem,
                         out.data()),
            0);
  const std::vector<float> got = out.ToHost();
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      int sum = problem.accumulates ? 1000 : 0;
      for (int k = 0; k < kDepth; ++k) {
        sum += NumberA(row, k) * NumberB(k, column);
      }
      ASSERT_EQ(got[static_cast<size_t>(row * kColumns + column)], static_cast<float>(sum))
          << "row " << row << ", column " << column;
    }
  }
}

constexpr uint64_t kModes[] = {0, 3, 2, 1};  // by log2

TEST(WarpgroupLayoutTest, KContiguous) {
  for (int log2 = 0; log2 <= 3; ++log2) {
    SCOPED_TRACE(log2);
    // Without a swizzle the two halves of K are apart; with one they are neighbours.
    const int atom = 128 << log2;
    const Layout a = {log2, kModes[log2], atom, log2 == 0 ? 8 * atom : 0};
    const Layout b = {log2, kModes[log2], 2 * atom, log2 == 0 ? atom : 0};
    for (bool accumulates : {false, true}) {
      ExpectProduct<Bf16, 64>({a, b, true, 64, accumulates});
      ExpectProduct<F16, 128>({a, b, true, 128, accumulates});
    }
  }
}

TEST(WarpgroupLayoutTest, NContiguous) {
  for (int log2 = 0; log2 <= 3; ++log2) {
    SCOPED_TRACE(log2);
    const int atom = 128 << log2;
    const Layout a = {3, 1, 1024, 0};
    const Layout b = {log2, kModes[log2], atom, 2 * atom};
    ExpectProduct<Bf16, 64>({a, b, false, 64, false});
    ExpectProduct<F16, 128>({a, b, false, 128, true});
  }
}

// ---- Order of warps -----------------------------------------------------------------------------

// Each warp notes its number three times and lets others run in between.
QUIRE_KERNEL void NoteOrder(int32_t* notes, int32_t* counts) {
  QUIRE_SHARED_MEMORY(shared);
  auto* barrier = reinterpret_cast<SharedBarrier*>(shared);
  if (threadIdx.x == 0) {
    barrier->Init(1000);
  }
  __syncthreads();
  for (int i = 0; i < 3 && threadIdx.x % 32 == 0; ++i) {
    notes[blockIdx.x * 12 + static_cast<uint32_t>(counts[blockIdx.x]++)] =
        static_cast<int32_t>(threadIdx.x / 32);
    barrier->Arrive();
  }
}

TEST(WarpOrderTest, ThreeCtasRunTheirWarpsInThreeOrders) {
  DeviceArray<int32_t> notes(4 * 12);
  DeviceArray<int32_t> counts(std::vector<int32_t>(4, 0));

  ASSERT_EQ(QUIRE_LAUNCH(NoteOrder,
                         dim3(4),
                         dim3(128),
                         sizeof(SharedBarrier),
                         nullptr,
                         notes.data(),
                         counts.data()),
            0);

  EXPECT_EQ(counts.ToHost(), std::vector<int32_t>(4, 12));
  const std::vector<int32_t> all = notes.ToHost();
  const auto of_cta = [&](int cta) {
    return std::vector<int32_t>(all.begin() + cta * 12, all.begin() + (cta + 1) * 12);
  };
  EXPECT_NE(of_cta(0), of_cta(1));
  EXPECT_NE(of_cta(1), of_cta(2));
  EXPECT_NE(of_cta(0), of_cta(2));
  EXPECT_EQ(of_cta(0), of_cta(3));
}

// ---- Faults -------------------------------------------------------------------------------------

// Steps that a faulty kernel leaves out or does wrong.
enum class Bug : uint8_t {
  kNone,
  kNoFullWait,
  kNoProxyFence,
  kNoFence,
  kNoCommit,
  kNoWait,
  kFreeBeforeWait,
  kNoFreeWait,
  kWritesAccumulator,
  kWritesFragment,
  kOverlappingAccumulators,
  kOutside,
  kInsidePattern,
  kReservedBits,
  kOneWarpLess,
  kOneWarpElsewhere,
  kNoInit,
  kNoArrival,
  kUnevenNamedBarrier,
  kLonelyArrival,
  kLateCopy,
};

constexpr int kRounds = 3;
constexpr int kSize = 64;

// Computes out = a * (b[0] + b[1] + b[2]), all [64, 64]. Threads 0 to 127 copy one b after the
// other into one buffer, and the other threads multiply. With kNoinc the arrival of the copies
// themselves fills the buffer, and the multiplying threads fence between copies and products.
template <Bug kBug, bool kNoinc>
QUIRE_KERNEL void CopyAndMultiply(const Bf16* a, const Bf16* b, float* out) {
  QUIRE_SHARED_MEMORY(shared);
  shared += -SharedAddress(shared) & (kSwizzleBytes - 1);
  auto* const full = reinterpret_cast<SharedBarrier*>(shared + kSize * kSwizzleRowBytes);
  auto* const free = full + 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize;
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  if (threadIdx.x == 0 && kBug != Bug::kNoInit) {
    full->Init(kNoinc ? kWarpgroupSize : 4);
    free->Init(4);
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroupSize) {
    for (int round = 0; round < kRounds; ++round) {
      if (round > 0 && kBug != Bug::kNoFreeWait) {
        free->Wait((round - 1) & 1);
      }
      for (int i = thread; i < kSize * 8; i += kWarpgroupSize) {
        CopyAsync16(shared + SwizzledOffset(i / 8, i % 8), b + (round * kSize * 8 + i) * 8, true);
        if (kNoinc && kBug == Bug::kLateCopy && i == thread + 2 * kWarpgroupSize) {
          full->ArriveAfterCopies();
        }
      }
      CommitCopies();
      if (kNoinc) {
        if (kBug != Bug::kLateCopy && (kBug != Bug::kNoArrival || warp != 2)) {
          full->ArriveAfterCopies();
        }
        if (round == kRounds - 1 && kBug != Bug::kNoWait) {
          WaitCopies<0>();
        }
        continue;
      }
      WaitCopies<0>();
      if (kBug != Bug::kNoProxyFence) {
        FenceAsyncProxy();
      }
      __syncwarp();
      if (lane == 0 && (kBug != Bug::kNoArrival || warp != 2)) {
        full->Arrive();
      }
    }
    if (kBug == Bug::kUnevenNamedBarrier) {
      ArriveNamedBarrier(5, 256);
    }
    return;
  }

  uint32_t fragments[kSize / 16][4];
  for (int k = 0; k < kSize / 16; ++k) {
    for (int r = 0; r < 4; ++r) {
      const int row = 16 * warp + lane / 4 + 8 * (r & 1);
      const int column = 16 * k + lane % 4 * 2 + 8 * (r >> 1);
      std::memcpy(&fragments[k][r], a + row * kSize + column, 4);
    }
  }
  float d[kSize / 8 + 1][4] = {};
  auto& sums = reinterpret_cast<float(&)[kSize / 8][4]>(d);
  uint64_t descriptor = MakeDescriptor(shared, 8192, kSwizzleBytes);
  if (kBug == Bug::kOutside) {
    descriptor = Advance(descriptor, 8192);
  } else if (kBug == Bug::kInsidePattern) {
    descriptor = Advance(descriptor, 128);
  } else if (kBug == Bug::kReservedBits) {
    descriptor |= uint64_t{1} << 49;
  }
  for (int round = 0; round < kRounds; ++round) {
    if (kBug != Bug::kNoFullWait) {
      full->Wait(round & 1);
    }
    if (kNoinc && kBug != Bug::kNoProxyFence) {
      FenceAsyncProxy();
    }
    if (kBug != Bug::kNoFence) {
      FenceWarpgroup();
    }
    for (int k = 0; k < kSize / 16; ++k) {
      if (kBug == Bug::kOneWarpLess && warp == 3 && round == kRounds - 1 && k == 3) {
        continue;
      }
      const int from = kBug == Bug::kOneWarpElsewhere && warp == 1 && k == 2 ? 3 : k;
      WarpgroupMmaOfRegisters<Bf16, kSize>(
          sums, fragments[k], Advance(descriptor, from * 16 * kSwizzleRowBytes));
    }
    if (kBug == Bug::kOverlappingAccumulators) {
      WarpgroupMmaOfRegisters<Bf16, kSize>(
          reinterpret_cast<float(&)[kSize / 8][4]>(d[1]), fragments[0], descriptor);
    }
    if (kBug != Bug::kNoCommit) {
      CommitProducts();
    }
    if (kBug == Bug::kWritesAccumulator) {
      sums[2][1] += 1.0F;
    } else if (kBug == Bug::kWritesFragment) {
      fragments[1][2] ^= 0x80000000;
    }
    if (kBug == Bug::kFreeBeforeWait) {
      __syncwarp();
      if (lane == 0) {
        free->Arrive();
      }
    }
    if (kBug != Bug::kNoWait || kNoinc) {
      WaitProducts<0>();
    }
    if (kBug != Bug::kFreeBeforeWait) {
      __syncwarp();
      if (lane == 0) {
        free->Arrive();
      }
    }
  }
  for (int n = 0; n < kSize / 8; ++n) {
    for (int r = 0; r < 4; ++r) {
      const int row = 16 * warp + lane / 4 + 8 * (r >> 1);
      out[row * kSize + 8 * n + lane % 4 * 2 + (r & 1)] = sums[n][r];
    }
  }
  if (kBug == Bug::kUnevenNamedBarrier) {
    ArriveNamedBarrier(5, 128);
  } else if (kBug == Bug::kLonelyArrival) {
    ArriveNamedBarrier(5, 256);
  }
}

std::vector<FaultKind> seen_faults;

class WarpgroupFaultTest : public testing::Test {
 protected:
  WarpgroupFaultTest()
      : former_(emulator::SetFaultHandler(
            [](const emulator::Fault& fault) { seen_faults.push_back(fault.kind); })) {
    seen_faults.clear();
    std::vector<Bf16> a;
    std::vector<Bf16> b;
    for (int i = 0; i < kSize * kSize; ++i) {
      a.push_back({Bits<Bf16>(NumberA(i / kSize, i % kSize))});
    }
    for (int i = 0; i < kRounds * kSize * kSize; ++i) {
      b.push_back({Bits<Bf16>(NumberB(i / kSize, i % kSize))});
    }
    a_.FromHost(a);
    b_.FromHost(b);
  }
  ~WarpgroupFaultTest() override { emulator::SetFaultHandler(former_); }

  template <Bug kBug, bool kNoinc = false>
  int Run() {
    return QUIRE_LAUNCH((CopyAndMultiply<kBug, kNoinc>),
                        dim3(1),
                        dim3(2 * kWarpgroupSize),
                        kSwizzleBytes + kSize * kSwizzleRowBytes + 2 * sizeof(SharedBarrier),
                        nullptr,
                        a_.data(),
                        b_.data(),
                        out_.data());
  }

  template <Bug kBug, bool kNoinc = false>
  void ExpectFault(FaultKind kind) {
    EXPECT_EQ((Run<kBug, kNoinc>()), emulator::kErrorLaunchFailure);
    EXPECT_EQ(seen_faults, std::vector<FaultKind>{kind});
    // The emulator still works after the fault.
    EXPECT_EQ((Run<Bug::kNone, kNoinc>()), 0);
    ExpectRight();
  }

  void ExpectRight() {
    const std::vector<float> out = out_.ToHost();
    for (int row = 0; row < kSize; ++row) {
      for (int column = 0; column < kSize; ++column) {
        int sum = 0;
        for (int k = 0; k < kRounds * kSize; ++k) {
          sum += NumberA(row, k % kSize) * NumberB(k, column);
        }
        ASSERT_EQ(out[static_cast<size_t>(row * kSize + column)], static_cast<float>(sum));
      }
    }
  }

  DeviceArray<float> out_{kSize * kSize};

 private:
  emulator::FaultHandler former_;
  DeviceArray<Bf16> a_{kSize * kSize};
  DeviceArray<Bf16> b_{kRounds * kSize * kSize};
};

TEST_F(WarpgroupFaultTest, WithoutABugTheProductIsRight) {
  EXPECT_EQ(Run<Bug::kNone>(), 0);
  EXPECT_TRUE(seen_faults.empty());
  ExpectRight();
}

TEST_F(WarpgroupFaultTest, StartingBeforeTheCopiesHaveLanded) {
  ExpectFault<Bug::kNoFullWait>(FaultKind::kOperandChanged);
}
TEST_F(WarpgroupFaultTest, CopiesWithoutAProxyFence) {
  ExpectFault<Bug::kNoProxyFence>(FaultKind::kMissingFence);
}
TEST_F(WarpgroupFaultTest, RegistersWithoutAFence) {
  ExpectFault<Bug::kNoFence>(FaultKind::kMissingFence);
}
TEST_F(WarpgroupFaultTest, GroupsThatAreNotCommitted) {
  ExpectFault<Bug::kNoCommit>(FaultKind::kProductInFlight);  // the wait waits for nothing
}
TEST_F(WarpgroupFaultTest, ReturningWithoutAWait) {
  ExpectFault<Bug::kNoWait>(FaultKind::kProductInFlight);
}
TEST_F(WarpgroupFaultTest, FreeingTheBufferBeforeTheWait) {
  ExpectFault<Bug::kFreeBeforeWait>(FaultKind::kOperandChanged);
}
TEST_F(WarpgroupFaultTest, FillingTheBufferBeforeItIsFree) {
  ExpectFault<Bug::kNoFreeWait>(FaultKind::kOperandChanged);
}
TEST_F(WarpgroupFaultTest, WritingAnAccumulatorInFlight) {
  ExpectFault<Bug::kWritesAccumulator>(FaultKind::kOperandChanged);
}
TEST_F(WarpgroupFaultTest, WritingAFragmentInFlight) {
  ExpectFault<Bug::kWritesFragment>(FaultKind::kOperandChanged);
}
TEST_F(WarpgroupFaultTest, AccumulatorsThatOverlap) {
  ExpectFault<Bug::kOverlappingAccumulators>(FaultKind::kOperandChanged);
}
TEST_F(WarpgroupFaultTest, MatricesOutsideOfSharedMemory) {
  ExpectFault<Bug::kOutside>(FaultKind::kOutOfBounds);
}
TEST_F(WarpgroupFaultTest, MatricesThatStartWithinASwizzlePattern) {
  ExpectFault<Bug::kInsidePattern>(FaultKind::kBadDescriptor);
}
TEST_F(WarpgroupFaultTest, DescriptorsWithOtherBits) {
  ExpectFault<Bug::kReservedBits>(FaultKind::kBadDescriptor);
}
TEST_F(WarpgroupFaultTest, AProductThatOneWarpLeavesOut) {
  ExpectFault<Bug::kOneWarpLess>(FaultKind::kDivergentWarp);
}
TEST_F(WarpgroupFaultTest, WarpsWithDifferentDescriptors) {
  ExpectFault<Bug::kOneWarpElsewhere>(FaultKind::kDivergentWarp);
}
TEST_F(WarpgroupFaultTest, BarriersThatWereNotInitialised) {
  ExpectFault<Bug::kNoInit>(FaultKind::kNoBarrier);
}
TEST_F(WarpgroupFaultTest, AnArrivalThatIsLeftOut) {
  ExpectFault<Bug::kNoArrival>(FaultKind::kDeadlock);
}
TEST_F(WarpgroupFaultTest, NamedBarriersOfUnevenCounts) {
  ExpectFault<Bug::kUnevenNamedBarrier>(FaultKind::kDivergentBarrier);
}
TEST_F(WarpgroupFaultTest, NamedBarriersThatNobodyCompletes) {
  ExpectFault<Bug::kLonelyArrival>(FaultKind::kIncompleteBarrier);
}

// ---- Arrivals that come with the copies --------------------------------------------------------

TEST_F(WarpgroupFaultTest, ArrivingWithTheCopiesTheProductIsRight) {
  EXPECT_EQ((Run<Bug::kNone, true>()), 0);
  EXPECT_TRUE(seen_faults.empty());
  ExpectRight();
}
TEST_F(WarpgroupFaultTest, StartingBeforeTheCopiesHaveArrived) {
  ExpectFault<Bug::kNoFullWait, true>(FaultKind::kOperandChanged);
}
TEST_F(WarpgroupFaultTest, CopiesThatArrivedWithoutAProxyFenceOfWhoMultiplies) {
  ExpectFault<Bug::kNoProxyFence, true>(FaultKind::kMissingFence);
}
TEST_F(WarpgroupFaultTest, AnArrivalWithCopiesThatIsLeftOut) {
  ExpectFault<Bug::kNoArrival, true>(FaultKind::kDeadlock);
}
TEST_F(WarpgroupFaultTest, FillingABufferThatIsNotFreeWithoutAWait) {
  ExpectFault<Bug::kNoFreeWait, true>(FaultKind::kOperandChanged);
}
TEST_F(WarpgroupFaultTest, CopiesStartedAfterTheArrivalHaveNotArrived) {
  ExpectFault<Bug::kLateCopy, true>(FaultKind::kOperandChanged);
}
TEST_F(WarpgroupFaultTest, ReturningWithoutAWaitForTheCopies) {
  ExpectFault<Bug::kNoWait, true>(FaultKind::kCopyInFlight);
}

// An accumulator is NaN from the start of the product to the wait.
QUIRE_KERNEL void ReadEarly(float* early, float* late) {
  QUIRE_SHARED_MEMORY(shared);
  shared += -SharedAddress(shared) & (kSwizzleBytes - 1);
  std::memset(shared + threadIdx.x * 64, 0, 64);
  __syncthreads();
  float d[8][4] = {};
  const uint64_t descriptor = MakeDescriptor(shared, 0, kSwizzleBytes);
  FenceWarpgroup();
  WarpgroupMma<F16, 64>(d, descriptor, descriptor, false);
  CommitProducts();
  early[threadIdx.x] = d[3][2];
  WaitProducts<0>();
  late[threadIdx.x] = d[3][2];
}

TEST_F(WarpgroupFaultTest, ReadingAnAccumulatorBeforeTheWaitGivesNan) {
  DeviceArray<float> early(kWarpgroupSize);
  DeviceArray<float> late(kWarpgroupSize);

  EXPECT_EQ(QUIRE_LAUNCH(ReadEarly,
                         dim3(1),
                         dim3(kWarpgroupSize),
                         size_t{2 * 8192},
                         nullptr,
                         early.data(),
                         late.data()),
            0);

  for (const float number : early.ToHost()) {
    EXPECT_TRUE(std::isnan(number));
  }
  for (const float number : late.ToHost()) {
    EXPECT_EQ(number, 0.0F);
  }
}

}  // namespace
}  // namespace quire::gpu
