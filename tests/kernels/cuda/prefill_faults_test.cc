// Bugs planted in persistent prefill, one at a time, and how the emulator finds each: by a fault,
// or by a wrong result. A bug is a shape with a wrong number, or a function that is specialized for
// a shape.
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/prefill_persistent.cuh"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/seen_faults.h"

namespace quire::gpu {

using emulator::FaultKind;

enum class PrefillBug : uint8_t {
  kNone,
  kExpectsLess,
  kExpectsMore,
  kFreesEarly,
  kFreesNever,
  kNoInitFence,
  kKeepsTail,
  kMasksTooMuch,
  kNoWaitForValues,
  kWrongSwizzle,
  kWrongPiece,
  kPassesUnread,
  kWrongPhase,
};

// head_dim 96 has a piece of 64 dims and one of 32.
template <PrefillBug kBug>
struct FaultyShape : PersistentShape<Bf16, 96> {
  using Base = PersistentShape<Bf16, 96>;
  static constexpr int kRowBytes = Base::kRowBytes + (kBug == PrefillBug::kExpectsLess   ? -16
                                                      : kBug == PrefillBug::kExpectsMore ? 16
                                                                                         : 0);
  static constexpr int kConsumerWarps =
      Base::kConsumerWarps + (kBug == PrefillBug::kFreesEarly   ? -1
                              : kBug == PrefillBug::kFreesNever ? 1
                                                                : 0);
};

// ---- Functions with a bug -----------------------------------------------------------------------

using NoInitFence = FaultyShape<PrefillBug::kNoInitFence>;
template <>
inline void PersistentMemory<NoInitFence>::Init() const {
  KeyRing().Init(1, NoInitFence::kConsumerWarps);
  ValueRing().Init(1, NoInitFence::kConsumerWarps);
  QueryRing().Init(NoInitFence::kQueryWarps, NoInitFence::kConsumerWarps);
  WorkRing().Init(1, NoInitFence::kConsumerWarps + NoInitFence::kQueryWarps + 1);
}

template <>
inline void ZeroOtherRows<FaultyShape<PrefillBug::kKeepsTail>>(uint8_t* /*tile*/,
                                                               int32_t /*begin*/,
                                                               int32_t /*end*/) {}

// The mask takes each row's own key away.
using MasksTooMuch = FaultyShape<PrefillBug::kMasksTooMuch>;
template <>
inline void ComputeWeights<MasksTooMuch>(WgmmaScores<MasksTooMuch>& scores,
                                         SoftmaxState (&states)[2],
                                         float (&rescale)[2],
                                         const PrefillParams& params,
                                         const ItemRows& rows,
                                         int32_t lane_row,
                                         int32_t first_key) {
  ItemRows shifted = rows;
  shifted.context -= 1;
  ComputeWeights<PersistentShape<Bf16, 96>>(
      scores, states, rescale, params, shifted, lane_row, first_key);
}

using NoWaitForValues = FaultyShape<PrefillBug::kNoWaitForValues>;
template <>
inline void AwaitValues<NoWaitForValues>(PersistentOut<NoWaitForValues>& /*out*/,
                                         WgmmaWeights<NoWaitForValues>& /*weights*/) {}

using WrongSwizzle = FaultyShape<PrefillBug::kWrongSwizzle>;
template <>
inline void StartTileValues<WrongSwizzle>(PersistentOut<WrongSwizzle>& out,
                                          WgmmaWeights<WrongSwizzle>& weights,
                                          const uint8_t* values) {
  FenceWarpgroup();
  for (int n = 0; n < WrongSwizzle::kKeys / 16; ++n) {
    auto& first = *reinterpret_cast<float(*)[8][4]>(&out[0]);
    auto& second = *reinterpret_cast<float(*)[4][4]>(&out[8]);
    const uint64_t b = MakeDescriptor<128>(values + n * 16 * 128, 0, 1024);
    // Rows of 64 bytes whose 16-byte units are exchanged as in rows of 32 bytes.
    const uint64_t tail =
        MakeDescriptor<32>(values + 8 * WrongSwizzle::kKeys * 16 + n * 16 * 64, 32, 512);
    WarpgroupMmaOfRegisters<Bf16, 64>(first, weights[n], b);
    WarpgroupMmaOfRegisters<Bf16, 32>(second, weights[n], tail);
  }
  CommitProducts();
}

using WrongPiece = FaultyShape<PrefillBug::kWrongPiece>;
template <>
inline void StartTileScores<WrongPiece>(WgmmaScores<WrongPiece>& scores,
                                        const uint8_t* queries,
                                        const uint8_t* keys,
                                        int consumer) {
  // The rows of the second warpgroup's queries begin in the middle of a panel of the wrong size.
  StartTileScores<PersistentShape<Bf16, 96>>(scores, queries + consumer * 1024, keys, consumer);
}

using PassesUnread = FaultyShape<PrefillBug::kPassesUnread>;
template <>
inline void PassItem<PassesUnread>(const PersistentMemory<PassesUnread>& memory, int n, int use) {
  const int past = use + memory.Work(n).num_tiles;
  for (; use < past; ++use) {
    ArriveOfWarp(memory.KeyRing().Free(use));
    ArriveOfWarp(memory.ValueRing().Free(use));
  }
}

// The queries' ring is used as if it had one phase more.
using WrongPhase = FaultyShape<PrefillBug::kWrongPhase>;
template <>
inline void CopyQueries<WrongPhase>(const PersistentMemory<WrongPhase>& memory,
                                    const PrefillParams& /*params*/,
                                    int /*warp*/) {
  for (int n = 0;; ++n) {
    memory.WorkRing().WaitUntilFull(n);
    if (memory.Work(n).num_tiles == 0) {
      return;
    }
    memory.QueryRing().WaitUntilDone(n);
    ArriveOfWarp(memory.QueryRing().Full(n));
    ArriveOfWarp(memory.WorkRing().Free(n));
  }
}

namespace {

class PrefillFaultsTest : public testing::Test {
 protected:
  // Items of several tiles and of one, of which some have no rows for the second warpgroup. The
  // first is short: the rest of its tile is memory that no copy has filled.
  PrefillFaultsTest()
      : data_({.head_dim = 96,
               .num_heads = 2,
               .num_kv_heads = 2,
               .sequences = {{.query_len = 150, .seq_len = 500, .key = 1},
                             {.query_len = 5, .seq_len = 21, .key = 2},
                             {.query_len = 9, .seq_len = 300, .key = 3},
                             {.query_len = 70, .seq_len = 70, .key = 4}}}) {}

  template <PrefillBug kBug>
  int Run(std::vector<uint16_t>* out) {
    using Shape = FaultyShape<kBug>;
    DeviceAttention device(data_);
    const std::vector<PrefillItem> items = {{1, 0}, {0, 128}, {0, 0}, {2, 0}, {3, 0}};
    DeviceArray<PrefillItem> device_items(items);
    DeviceArray<int32_t> next_item(std::vector<int32_t>{0});
    PrefillParams params = {.attention = device.params()};
    params.plan = {.items = device_items.data(),
                   .num_items = static_cast<int32_t>(items.size()),
                   .next_item = next_item.data()};
    params.block_shift = 4;
    params.num_queries_per_kv_head = 1;
    const int error = QUIRE_LAUNCH(PersistentPrefillKernel<Shape>,
                                   dim3(2),
                                   dim3(Shape::kThreads),
                                   Shape::kSharedBytes,
                                   nullptr,
                                   params);
    *out = device.Out();
    return error;
  }

  template <PrefillBug kBug>
  void ExpectFault(FaultKind kind) {
    const SeenFaults faults;
    std::vector<uint16_t> out;
    Run<kBug>(&out);
    ASSERT_EQ(faults.all().size(), 1U);
    EXPECT_EQ(faults.all()[0].kind, kind) << faults.all()[0].text;
  }

  // Expects a fault or a result that differs from the right one.
  template <PrefillBug kBug>
  void ExpectFound() {
    std::vector<uint16_t> expected;
    ASSERT_EQ(Run<PrefillBug::kNone>(&expected), 0);
    const SeenFaults faults;
    std::vector<uint16_t> out;
    Run<kBug>(&out);
    EXPECT_TRUE(!faults.all().empty() || out != expected);
  }

  AttentionData data_;
};

TEST_F(PrefillFaultsTest, WithoutABugTheResultIsRight) {
  std::vector<uint16_t> out;
  ASSERT_EQ(Run<PrefillBug::kNone>(&out), 0);
  ExpectClose(data_, out);
}

TEST_F(PrefillFaultsTest, AWrongCountOfBytesIsFound) {
  ExpectFault<PrefillBug::kExpectsLess>(FaultKind::kWrongByteCount);
  ExpectFault<PrefillBug::kExpectsMore>(FaultKind::kDeadlock);
}

TEST_F(PrefillFaultsTest, AWrongCountOfReadersIsFound) {
  ExpectFound<PrefillBug::kFreesEarly>();
  ExpectFault<PrefillBug::kFreesNever>(FaultKind::kDeadlock);
  ExpectFound<PrefillBug::kPassesUnread>();
}

TEST_F(PrefillFaultsTest, BarriersWithoutAFenceAreFound) {
  ExpectFault<PrefillBug::kNoInitFence>(FaultKind::kMissingFence);
}

TEST_F(PrefillFaultsTest, AWrongPhaseIsFound) {
  ExpectFault<PrefillBug::kWrongPhase>(FaultKind::kDeadlock);
}

TEST_F(PrefillFaultsTest, RowsBehindTheEndAreFoundInTheResult) {
  std::vector<uint16_t> out;
  EXPECT_EQ(Run<PrefillBug::kKeepsTail>(&out), 0);
  bool has_nan = false;
  for (const uint16_t bits : out) {
    has_nan = has_nan || std::isnan(ValueOf(DType::kBF16, bits));
  }
  EXPECT_TRUE(has_nan);
}

TEST_F(PrefillFaultsTest, AMaskOfOneKeyTooManyIsFound) { ExpectFound<PrefillBug::kMasksTooMuch>(); }

TEST_F(PrefillFaultsTest, AMissingWaitForProductsIsFound) {
  ExpectFault<PrefillBug::kNoWaitForValues>(FaultKind::kOperandChanged);
}

TEST_F(PrefillFaultsTest, AWrongSwizzleIsFound) { ExpectFound<PrefillBug::kWrongSwizzle>(); }

TEST_F(PrefillFaultsTest, AWrongPlaceOfAPieceIsFound) { ExpectFound<PrefillBug::kWrongPiece>(); }

}  // namespace
}  // namespace quire::gpu
