// EmbedKernel computes embeddings (EmbeddingParams in dense.h), as a template over a Simd struct.
#ifndef QUIRE_KERNELS_CPU_EMBED_KERNEL_INL_H_
#define QUIRE_KERNELS_CPU_EMBED_KERNEL_INL_H_

#include <cstdint>

#include "kernels/api/dense.h"
#include "kernels/cpu/cpu_linear.h"
#include "kernels/cpu/packed_codes.h"
#include "kernels/cpu/row_tasks.h"
#include "kernels/cpu/storage_types.h"

namespace quire {

template <typename S>
struct EmbedKernel {
  using Vec = typename S::Vec;

  static void Run(const EmbeddingParams& params, ThreadTeam& team) {
    const int64_t width = params.table.cols;
    const auto* const packed = static_cast<const CpuLinear*>(params.packed_table);
    ForEachRow(params.num_tokens, width, team, [&](int64_t i) {
      float* out = static_cast<float*>(params.out) + i * width;
      const int64_t row = int64_t{params.token_ids[i]} - params.first_token;
      if (row < 0 || row >= params.table.rows) {
        __builtin_memset(out, 0, static_cast<size_t>(width) * sizeof(float));
      } else if (params.table.data == nullptr) {
        packed->WidenRow(row, out);
      } else {
        WidenRow(params.table, row, out, nullptr);
      }
      if (params.position_table.data != nullptr) {
        const int64_t position = int64_t{params.positions[i]} + params.position_offset;
        WidenRow(params.position_table, position, out, out);
      }
    });
  }

  // Writes row `row` of the table to `out`, plus `addend` if `addend` is not null.
  static void WidenRow(const MatrixView& table, int64_t row, float* out, const float* addend) {
    const int64_t first = row * table.cols;
    switch (table.format) {
      case WeightFormat::kF32:
        return Widen(static_cast<const float*>(table.data) + first, table.cols, out, addend);
      case WeightFormat::kF16:
        return Widen(static_cast<const Float16*>(table.data) + first, table.cols, out, addend);
      case WeightFormat::kBF16:
        return Widen(static_cast<const BFloat16*>(table.data) + first, table.cols, out, addend);
      default:
        return DequantizeRow(table, row, addend, out);
    }
  }

  template <typename T>
  static void Widen(const T* from, int64_t width, float* out, const float* addend) {
    int64_t d = 0;
    for (; d + S::kLanes <= width; d += S::kLanes) {
      const Vec v = S::Load(from + d);
      S::Store(out + d, addend == nullptr ? v : S::Add(S::Load(addend + d), v));
    }
    if (d < width) {
      const int left = static_cast<int>(width - d);
      const Vec v = S::LoadN(from + d, left);
      S::StoreN(out + d, addend == nullptr ? v : S::Add(S::LoadN(addend + d, left), v), left);
    }
  }
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_EMBED_KERNEL_INL_H_
