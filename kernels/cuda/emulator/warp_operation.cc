#include "kernels/cuda/emulator/warp_operation.h"

#include <bit>
#include <cstring>

#include "kernels/cuda/emulator/float16.h"

namespace quire::gpu::emulator {
namespace {

struct ShuffleLane {
  uint64_t value;
  uint32_t source;
  uint64_t result;
};

void ExchangeValues(void* const* lanes, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    auto* lane = static_cast<ShuffleLane*>(lanes[std::countr_zero(mask)]);
    lane->result = static_cast<const ShuffleLane*>(lanes[lane->source])->value;
  }
}

struct BallotLane {
  bool predicate;
  uint32_t result;
};

void CountVotes(void* const* lanes, uint32_t mask) {
  uint32_t votes = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    votes |= static_cast<const BallotLane*>(lanes[lane])->predicate ? 1u << lane : 0;
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    static_cast<BallotLane*>(lanes[std::countr_zero(rest)])->result = votes;
  }
}

struct MatrixLane {
  uint32_t* registers;
  const void* row;
};

template <bool kTransposed>
void LoadMatrices(void* const* lanes, uint32_t /*mask*/) {
  for (uint32_t matrix = 0; matrix < 4; ++matrix) {
    uint16_t rows[8][8];
    for (uint32_t row = 0; row < 8; ++row) {
      memcpy(rows[row], static_cast<const MatrixLane*>(lanes[8 * matrix + row])->row, 16);
    }
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const uint32_t g = lane / 4;
      const uint32_t t = lane % 4;
      const uint32_t low = kTransposed ? rows[2 * t][g] : rows[g][2 * t];
      const uint32_t high = kTransposed ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
      static_cast<const MatrixLane*>(lanes[lane])->registers[matrix] = low | high << 16;
    }
  }
}

struct MmaLane {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

// Assembles the 16 x 16 matrix a and the 16 x 8 matrix b from the lanes' words, each of which holds
// the elements at two adjacent k. Then multiplies row by row, four columns at a time.
template <bool kBf16>
void MultiplyAdd(void* const* lanes, uint32_t /*mask*/) {
  alignas(16) uint32_t a_words[16][8];  // [row][k / 2]
  alignas(16) uint32_t b_words[8][8];   // [k / 2][column]
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    const auto& lane = *static_cast<const MmaLane*>(lanes[i]);
    const uint32_t g = i / 4;
    const uint32_t t = i % 4;
    a_words[g][t] = lane.a[0];
    a_words[g + 8][t] = lane.a[1];
    a_words[g][t + 4] = lane.a[2];
    a_words[g + 8][t + 4] = lane.a[3];
    b_words[t][g] = lane.b[0];
    b_words[t + 4][g] = lane.b[1];
  }

  Floats b[16][2];  // [k][half of the columns]
  for (uint32_t k = 0; k < 16; k += 2) {
    for (uint32_t half = 0; half < 2; ++half) {
      Words pairs;
      memcpy(&pairs, &b_words[k / 2][4 * half], sizeof(pairs));
      b[k][half] = ToFloats<kBf16>(pairs & 0xFFFF);
      b[k + 1][half] = ToFloats<kBf16>(pairs >> 16);
    }
  }
  for (uint32_t row = 0; row < 16; ++row) {
    // The row's elements at k = 0, 2, 4, 6, 1, 3, 5, 7, then at these k + 8.
    float a[16];
    for (uint32_t half = 0; half < 2; ++half) {
      Words pairs;
      memcpy(&pairs, &a_words[row][4 * half], sizeof(pairs));
      const Floats even = ToFloats<kBf16>(pairs & 0xFFFF);
      const Floats odd = ToFloats<kBf16>(pairs >> 16);
      memcpy(&a[8 * half], &even, sizeof(even));
      memcpy(&a[8 * half + 4], &odd, sizeof(odd));
    }
    Floats sums[2] = {};
    for (uint32_t k = 0; k < 16; ++k) {
      const float factor = a[(k & 8) + 4 * (k & 1) + (k & 7) / 2];
      sums[0] += factor * b[k][0];
      sums[1] += factor * b[k][1];
    }
    // Four lanes hold this row. Lane t of the four has columns 2 t and 2 t + 1.
    for (uint32_t t = 0; t < 4; ++t) {
      float* d = static_cast<const MmaLane*>(lanes[(row & 7) * 4 + t])->d + (row >= 8 ? 2 : 0);
      d[0] += sums[t / 2][2 * (t & 1)];
      d[1] += sums[t / 2][2 * (t & 1) + 1];
    }
  }
}

constexpr WarpOperation kSyncWarp{"__syncwarp", nullptr, false, true};
constexpr WarpOperation kShuffle{"a shuffle", &ExchangeValues, false, false};
constexpr WarpOperation kBallot{"a vote", &CountVotes, false, false};
constexpr WarpOperation kLoadMatrix{"ldmatrix", &LoadMatrices<false>, true, false};
constexpr WarpOperation kLoadMatrixTransposed{"ldmatrix.trans", &LoadMatrices<true>, true, false};
constexpr WarpOperation kMmaBf16{"mma", &MultiplyAdd<true>, true, false};
constexpr WarpOperation kMmaF16{"mma", &MultiplyAdd<false>, true, false};

constexpr uint32_t kWholeWarp = 0xFFFFFFFF;

}  // namespace

void SyncWarp(uint32_t mask, SourceLine at) { RunWarpOperation(kSyncWarp, mask, nullptr, at); }

uint64_t RunShuffle(uint32_t mask, uint64_t value, uint32_t source, SourceLine at) {
  if ((mask >> source & 1) == 0) {
    ReportFault(FaultKind::kNotInMask, "a shuffle reads from a lane that is not in the mask", at);
  }
  ShuffleLane lane{value, source, 0};
  RunWarpOperation(kShuffle, mask, &lane, at);
  return lane.result;
}

uint32_t RunBallot(uint32_t mask, bool predicate, SourceLine at) {
  BallotLane lane{predicate, 0};
  RunWarpOperation(kBallot, mask, &lane, at);
  return lane.result;
}

void RunLoadMatrix(uint32_t* registers, const void* row, bool transposed, SourceLine at) {
  if (!InSharedMemory(row, 16, at)) {
    ReportFault(FaultKind::kOutOfBounds, "ldmatrix from outside of shared memory", at);
  }
  MatrixLane lane{registers, row};
  RunWarpOperation(transposed ? kLoadMatrixTransposed : kLoadMatrix, kWholeWarp, &lane, at);
}

void RunMmaBf16(float* d, const uint32_t* a, const uint32_t* b, SourceLine at) {
  MmaLane lane{d, a, b};
  RunWarpOperation(kMmaBf16, kWholeWarp, &lane, at);
}

void RunMmaF16(float* d, const uint32_t* a, const uint32_t* b, SourceLine at) {
  MmaLane lane{d, a, b};
  RunWarpOperation(kMmaF16, kWholeWarp, &lane, at);
}

}  // namespace quire::gpu::emulator
