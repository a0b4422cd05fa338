// Finish turns tiles of sums into results of a product (linear_amx.cc). It adds up the sums of all
// segments of k (LinearSource::num_segments), and the bias. Then it writes the results to y, or
// activates them and stores them as the input of the next product.
//
// Vector instructions do this work. The CPU's vector unit is idle while tiles are multiplied, so
// the work is deferred: while the next tiles are multiplied, each step of that loop also finishes a
// few rows.
//
// Thread safety: a Finish belongs to one thread.
#ifndef QUIRE_KERNELS_CPU_AMX_FINISH_H_
#define QUIRE_KERNELS_CPU_AMX_FINISH_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/activate_kernel.inl.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/packed_linear.h"
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/storage_types.h"

namespace quire {
namespace {

inline constexpr int64_t kSumTiles = 4;
inline constexpr int64_t kUnitFloats = kSumTiles * AmxTile::kFloats;

// Destination of the sums of one product y = x W^T.
struct Sink {
  const CpuPackedLinear* weight = nullptr;
  float* y = nullptr;
  BFloat16* activated = nullptr;  // if set, gets act(gate) * up, the x of the next product
  ActivationKind activation = ActivationKind::kSilu;
  int64_t num_rows = 0;
  int64_t tile_rows = 0;
};

// Deferred work on the rows of one Unit, which is four tiles of sums (amx_products.h).
struct Finish {
  using Rows = void (*)(const Finish& finish, int64_t begin, int64_t end);
  Rows run = nullptr;
  const Sink* sink = nullptr;
  // The sums of the newest segment of k, followed by the sums of earlier segments, kUnitFloats
  // apart.
  const float* sums = nullptr;
  int merges = 0;  // number of earlier segments whose sums are added to those of the newest one
  int64_t row = 0;
  int64_t column = 0;
  int64_t next = 0;  // first row that is not finished
  int64_t end = 0;
  int64_t rows_per_step = 0;

  // Spreads the unfinished rows evenly over the next `steps` calls of Step.
  void Spread(int64_t steps) { rows_per_step = (end - next + steps - 1) / steps; }
  void Step() {
    if (next < end) {
      const int64_t to = next + rows_per_step < end ? next + rows_per_step : end;
      run(*this, next, to);
      next = to;
    }
  }
  void Flush() {
    if (next < end) {
      run(*this, next, end);
      next = end;
    }
  }

  // Returns the first sum of row r. A unit has four tiles of sums: two for each of two blocks of 16
  // rows, or all four for one block of 16 rows. The columns of a row continue in the next tile of
  // its block.
  template <int kRowTiles>
  const float* RowOfSums(int64_t r) const {
    return kRowTiles == 2 ? sums + r / AmxTile::kRows * 2 * AmxTile::kFloats +
                                r % AmxTile::kRows * AmxTile::kColumns
                          : sums + r * AmxTile::kColumns;
  }
  __m512 Merged(const float* at) const {
    __m512 sum = _mm512_load_ps(at);
    for (int merge = 0; merge < merges; ++merge) {
      at += kUnitFloats;
      sum = _mm512_add_ps(_mm512_load_ps(at), sum);
    }
    return sum;
  }
};

// Finishes a segment of k that is not the last one: adds the sums of earlier segments to the
// segment's sums.
template <int kRowTiles>
void MergeRows(const Finish& f, int64_t begin, int64_t end) {
  const int64_t to = (f.merges + 1) * kUnitFloats;
  for (int64_t r = begin; r < end; ++r) {
    const float* at = f.RowOfSums<kRowTiles>(r);
    for (int64_t tile = 0; tile < kSumTiles / kRowTiles; ++tile, at += AmxTile::kFloats) {
      _mm512_store_ps(const_cast<float*>(at) + to, f.Merged(at));
    }
  }
}

template <int kRowTiles>
void OutputRows(const Finish& f, int64_t begin, int64_t end) {
  const int64_t width = f.sink->weight->out_features();
  const float* bias = f.sink->weight->bias();
  for (int64_t r = begin; r < end; ++r) {
    const float* at = f.RowOfSums<kRowTiles>(r);
    float* y = f.sink->y + (f.row + r) * width;
    for (int64_t tile = 0; tile < kSumTiles / kRowTiles; ++tile, at += AmxTile::kFloats) {
      const int64_t column = f.column + tile * AmxTile::kColumns;
      const int64_t left = width - column;
      if (left <= 0) {
        break;
      }
      const auto mask =
          static_cast<__mmask16>(left < AmxTile::kColumns ? (1U << left) - 1 : 0xFFFF);
      __m512 sum = f.Merged(at);
      if (bias != nullptr) {
        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, bias + column));
      }
      _mm512_mask_storeu_ps(y + column, mask, sum);
    }
  }
}

// The linker merges the functions of ActivateKernel<SimdAvx512> from all sources, so AVX-512
// machines could get functions that were compiled for AMX. This type in the anonymous namespace
// gives this source separate functions.
struct FinishSimd : SimdAvx512 {};

// Result tiles 0 and 1 hold the sums of gate and of up for the same rows and columns. Result tiles
// 2 and 3 hold those of the next 16 rows if kRowTiles == 2, else of the next 16 columns.
template <typename Function, int kRowTiles>
void ActivateRows(const Finish& f, int64_t begin, int64_t end) {
  const int64_t width = f.sink->weight->out_features() / 2;
  const int64_t tile_elements = f.sink->tile_rows * AmxTile::kDepth;
  const float* bias = f.sink->weight->bias();
  for (int64_t r = begin; r < end; ++r) {
    const float* at = f.RowOfSums<kRowTiles>(r);
    const int64_t first = kRowTiles == 2 ? r / AmxTile::kRows * AmxTile::kRows : 0;
    for (int64_t tile = 0; tile < 2 / kRowTiles; ++tile, at += 2 * AmxTile::kFloats) {
      const int64_t column = f.column + tile * AmxTile::kColumns;
      __m512 gate = _mm512_load_ps(at);
      __m512 up = _mm512_load_ps(at + AmxTile::kFloats);
      if (bias != nullptr) {
        gate = _mm512_add_ps(gate, _mm512_loadu_ps(bias + column));
        up = _mm512_add_ps(up, _mm512_loadu_ps(bias + width + column));
      }
      const __m512 activated = _mm512_mul_ps(Function::Apply(gate), up);
      BFloat16* to = f.sink->activated + (f.row + first) * width +
                     column / AmxTile::kDepth * tile_elements + (r - first) * AmxTile::kDepth +
                     column % AmxTile::kDepth;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(activated)));
    }
  }
}

template <int kRowTiles>
Finish::Rows ActivationOf(ActivationKind kind) {
  using Kernel = ActivateKernel<FinishSimd>;
  switch (kind) {
    case ActivationKind::kRelu:
      return &ActivateRows<Kernel::Relu, kRowTiles>;
    case ActivationKind::kGelu:
      return &ActivateRows<Kernel::Gelu, kRowTiles>;
    case ActivationKind::kGeluTanh:
      return &ActivateRows<Kernel::GeluTanh, kRowTiles>;
    case ActivationKind::kSilu:
      break;
  }
  return &ActivateRows<Kernel::Silu, kRowTiles>;
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_AMX_FINISH_H_
