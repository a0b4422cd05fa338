// QuantizedKernel is the linear layer of quantized weights as a template over a byte-vector struct
// (bytes_avx2.h). quantized_linear.h has the contract.
//
// Structure: a task multiplies one block of rows of x by a run of panels. A panel is as wide as a
// vector. For each panel, a tile of up to kMaxRows rows keeps its sums in registers from the first
// group to the last, so codes are unpacked once per tile.
#ifndef QUIRE_KERNELS_CPU_QUANTIZED_KERNEL_INL_H_
#define QUIRE_KERNELS_CPU_QUANTIZED_KERNEL_INL_H_

#include <cstdint>

#include "kernels/api/weight_block.h"
#include "kernels/cpu/code_format.h"
#include "kernels/cpu/packed_codes.h"
#include "kernels/cpu/quantize_vector.inl.h"
#include "kernels/cpu/quantized_kernels.h"
#include "kernels/cpu/storage_types.h"

namespace quire {
namespace {

template <typename B, WeightFormat kFormat>
struct QuantizedKernel {
  using S = typename B::Float;
  using Vec = typename S::Vec;
  static constexpr CodeFormat kCode = CodeFormatOf(kFormat);
  static constexpr bool kIsSigned = kCode.bits == 8 || kCode.is_table;
  static constexpr int kNumSums = kCode.num_sums();
  static constexpr int64_t kVecBytes = int64_t{4} * B::kLanes;
  static constexpr int64_t kCodeBytes = int64_t{kGroupWeights} * kCode.bits / 8 * B::kLanes;
  static constexpr int kMaxLevels = 3;  // levels of a binary tree of eight segments
  static constexpr const int8_t* kTable = kIq4Codes.data();

  // Returns four codes of each column of the packed group `w`: those with k / 4 = kQuad, where k
  // counts from the start of the group.
  template <int kQuad>
  static typename B::Bytes Codes(const uint8_t* w) {
    if constexpr (kCode.bits == 8) {
      return B::Load(w + kQuad * kVecBytes);
    } else {
      constexpr int kVector = kQuad % 4;
      const auto nibbles = kQuad < 4 ? B::LowNibbles(B::Load(w + kVector * kVecBytes))
                                     : B::HighNibbles(B::Load(w + kVector * kVecBytes));
      if constexpr (kCode.is_table) {
        return B::Lookup(kTable, nibbles);
      } else if constexpr (kCode.bits == 5) {
        return B::Or(nibbles, B::template Bits<4 - kQuad, 0x10>(B::Load(w + 4 * kVecBytes)));
      } else if constexpr (kCode.bits == 6) {
        return B::Or(
            nibbles,
            B::template Bits<4 - 2 * kVector, 0x30>(B::Load(w + (4 + kQuad / 4) * kVecBytes)));
      } else {
        return nibbles;
      }
    }
  }

  // Adds the products of four values of k to `sums`. `words` has 16-bit sums that are not yet added
  // to `sums`.
  template <int kRows, int kQuad>
  static void MultiplyQuad(const QuantizedTile& t,
                           const uint8_t* w,
                           int64_t k,
                           typename B::Words (&words)[kRows],
                           typename B::Int (&sums)[kRows]) {
    // Number of Words whose sum fits into 16 bits (bytes_avx2.h).
    constexpr int kAddends = kIsSigned ? 1 : kCode.bits == 4 ? 8 : kCode.bits == 5 ? 4 : 2;
    const auto codes = Codes<kQuad>(w);
    for (int i = 0; i < kRows; ++i) {
      const auto x = B::Inputs(t.x + i * t.x_stride + k + int64_t{4} * kQuad);
      if constexpr (B::kHasDot) {
        sums[i] = kIsSigned ? B::DotSigned(sums[i], codes, x) : B::Dot(sums[i], codes, x);
      } else {
        const auto product = kIsSigned ? B::MulSigned(codes, x) : B::MulUnsigned(codes, x);
        if constexpr (kQuad % kAddends == 0) {
          words[i] = product;
        } else {
          words[i] = B::AddWords(words[i], product);
        }
        if constexpr ((kQuad + 1) % kAddends == 0) {
          sums[i] = B::Add(sums[i], B::SumWords(words[i]));
        }
      }
    }
  }

  // Computes the integer sums of group g: one, or one for each half of the group. A sum starts at
  // -kZero times the inputs' sum, which amounts to subtracting kZero from each code.
  template <int kRows>
  static void MultiplyGroup(const QuantizedTile& t,
                            const uint8_t* w,
                            int64_t g,
                            typename B::Int (&sums)[kNumSums][kRows]) {
    constexpr int kLast = kNumSums - 1;
    for (int i = 0; i < kRows; ++i) {
      for (int s = 0; s < kNumSums; ++s) {
        const int32_t* x_sums = t.x_sums + 2 * (i * t.groups_stride + g);
        constexpr int kZero = kCode.zero_point + (B::kHasDot && kIsSigned ? B::kSignedOffset : 0);
        sums[s][i] =
            kZero == 0 ? B::Broadcast(0)
                       : B::Broadcast(-kZero * (kNumSums == 2 ? x_sums[s] : x_sums[0] + x_sums[1]));
      }
    }
    const int64_t k = g * kGroupWeights;
    typename B::Words words[kRows];
    MultiplyQuad<kRows, 0>(t, w, k, words, sums[0]);
    MultiplyQuad<kRows, 1>(t, w, k, words, sums[0]);
    MultiplyQuad<kRows, 2>(t, w, k, words, sums[0]);
    MultiplyQuad<kRows, 3>(t, w, k, words, sums[0]);
    MultiplyQuad<kRows, 4>(t, w, k, words, sums[kLast]);
    MultiplyQuad<kRows, 5>(t, w, k, words, sums[kLast]);
    MultiplyQuad<kRows, 6>(t, w, k, words, sums[kLast]);
    MultiplyQuad<kRows, 7>(t, w, k, words, sums[kLast]);
  }

  // Returns the scale of a group, or of half s of the group if the halves have scales.
  static Vec ScaleOf(const uint8_t* header, const uint8_t* w, int s) {
    const Vec scale = S::Load(reinterpret_cast<const Float16*>(header));
    return kCode.scales_per_group == 0
               ? scale
               : S::Mul(scale, B::LoadSigned(w + kCodeBytes + int64_t{s} * B::kLanes));
  }
  // Returns the number that is added to each weight of a group. REQUIRES: kCode.has_minimum.
  static Vec AddedOf(const uint8_t* header, const uint8_t* w) {
    const Vec added = S::Load(reinterpret_cast<const Float16*>(header) + B::kLanes);
    return kCode.scales_per_group == 0 ? added
                                       : S::Mul(added, B::LoadUnsigned(w + kCodeBytes + B::kLanes));
  }

  // Adds the products of group g and the rounded inputs to `sum` of each row. `header` is the start
  // of the group's block, `w` the group.
  template <int kRows>
  static void AddRoundedGroup(const QuantizedTile& t,
                              const uint8_t* header,
                              const uint8_t* w,
                              int64_t g,
                              Vec (&sum)[kRows]) {
    typename B::Int sums[kNumSums][kRows];
    MultiplyGroup(t, w, g, sums);
    for (int s = 0; s < kNumSums; ++s) {
      const Vec scale = ScaleOf(header, w, s);
      for (int i = 0; i < kRows; ++i) {
        const Vec a = S::Broadcast(t.x_scales[i * t.groups_stride + g]);
        sum[i] = S::Add(sum[i], S::Mul(B::ToFloat(sums[s][i]), S::Mul(scale, a)));
      }
    }
    if constexpr (kCode.has_minimum) {
      const Vec added = AddedOf(header, w);
      for (int i = 0; i < kRows; ++i) {
        const int64_t at = i * t.groups_stride + g;
        const auto x_sum = static_cast<float>(t.x_sums[2 * at] + t.x_sums[2 * at + 1]);
        const Vec a = S::Broadcast(t.x_scales[at]);
        sum[i] = S::Add(sum[i], S::Mul(S::Broadcast(x_sum), S::Mul(added, a)));
      }
    }
  }

  // Adds the products of four weights of each column and fp32 inputs, one weight per recursion. `x`
  // has the group's inputs.
  template <int kRows, int kQuad, int kByte = 0>
  static void AddQuad(const float* x,
                      int64_t x_stride,
                      typename B::Bytes codes,
                      Vec scale,
                      Vec added,
                      Vec (&sum)[kRows]) {
    const auto code = B::template SignedByte<kByte>(codes);
    Vec weight = S::Mul(scale, B::ToFloat(B::Sub(code, B::Broadcast(kCode.zero_point))));
    if constexpr (kCode.has_minimum) {
      weight = S::Add(weight, added);
    }
    for (int i = 0; i < kRows; ++i) {
      const Vec input = S::Broadcast(x[i * x_stride + int64_t{4} * kQuad + kByte]);
      sum[i] = S::Fma(input, weight, sum[i]);
    }
    if constexpr (kByte < 3) {
      AddQuad<kRows, kQuad, kByte + 1>(x, x_stride, codes, scale, added, sum);
    }
  }

  // Adds the products of group g and fp32 inputs to `sum` of each row, in ascending order of k.
  template <int kRows, int kQuad = 0>
  static void AddGroup(const QuantizedTile& t,
                       const uint8_t* header,
                       const uint8_t* w,
                       int64_t g,
                       Vec (&sum)[kRows]) {
    const Vec scale = ScaleOf(header, w, kNumSums == 1 ? 0 : kQuad / 4);
    Vec added = S::Zero();
    if constexpr (kCode.has_minimum) {
      added = AddedOf(header, w);
    }
    const float* const x = t.x_f32 + g * kGroupWeights;
    AddQuad<kRows, kQuad>(x, t.x_stride, Codes<kQuad>(w), scale, added, sum);
    if constexpr (kQuad < 7) {
      AddGroup<kRows, kQuad + 1>(t, header, w, g, sum);
    }
  }

  // Adds the products of groups [begin, end) of a panel to `sum` of each row.
  template <bool kRounded, int kRows>
  static void AddGroups(const PackedCodes& matrix,
                        const QuantizedTile& t,
                        const uint8_t* panel,
                        int64_t begin,
                        int64_t end,
                        Vec (&sum)[kRows]) {
    constexpr int64_t kAheadBytes = 2048;
    constexpr int64_t kCacheLine = 64;
    for (int64_t g = begin; g < end; ++g) {
      const int64_t at = matrix.first_group + g;
      const uint8_t* const header = panel + at / kCode.groups_per_block * matrix.block_bytes;
      const uint8_t* const w =
          header + matrix.header_bytes + at % kCode.groups_per_block * matrix.group_bytes;
      for (int64_t line = 0; line < matrix.group_bytes; line += kCacheLine) {
        __builtin_prefetch(w + kAheadBytes + line, 0, 3);
      }
      if (kRounded) {
        AddRoundedGroup(t, header, w, g, sum);
      } else {
        AddGroup(t, header, w, g, sum);
      }
    }
  }

  template <bool kRounded, int kRows>
  static void RunTile(const PackedCodes& matrix, const QuantizedTile& t, const uint8_t* panel) {
    Vec levels[kMaxLevels][kRows];
    Vec sum[kRows];
    for (int i = 0; i < kRows; ++i) {
      sum[i] = S::Zero();
    }
    for (int segment = 0; segment < t.num_segments; ++segment) {
      AddGroups<kRounded>(matrix,
                          t,
                          panel,
                          segment * matrix.num_groups / t.num_segments,
                          (segment + 1) * matrix.num_groups / t.num_segments,
                          sum);
      const int merges = __builtin_ctz(~static_cast<unsigned>(segment));
      const bool is_last = segment + 1 == t.num_segments;
      for (int i = 0; i < kRows; ++i) {
        for (int level = 0; level < merges; ++level) {
          sum[i] = S::Add(levels[level][i], sum[i]);
        }
        if (!is_last) {
          levels[merges][i] = sum[i];
          sum[i] = S::Zero();
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      StoreRow(t, i, sum[i]);
    }
  }

  static void StoreRow(const QuantizedTile& t, int i, Vec sum) {
    float* const y = t.y + i * t.y_stride;
    if (t.columns >= B::kLanes) {
      S::Store(y, t.bias == nullptr ? sum : S::Add(sum, S::Load(t.bias)));
    } else {
      S::StoreN(y, t.bias == nullptr ? sum : S::Add(sum, S::LoadN(t.bias, t.columns)), t.columns);
    }
  }

  // Tiles of fp32 inputs have fewer rows, because each row adds 32 products to the unrolled code.
  static void Run(const PackedCodes& matrix, const QuantizedTile& t, const uint8_t* panel) {
    constexpr int kFloatRows = B::kMaxRows < 4 ? B::kMaxRows : 4;
    if (t.x != nullptr) {
      return RunRows<true>(matrix, t, panel);
    }
    QuantizedTile part = t;
    for (int row = 0; row < t.rows; row += kFloatRows) {
      part.rows = t.rows - row < kFloatRows ? t.rows - row : kFloatRows;
      part.x_f32 = t.x_f32 + row * t.x_stride;
      part.y = t.y + row * t.y_stride;
      RunRows<false, kFloatRows>(matrix, part, panel);
    }
  }

  template <bool kRounded, int kRows = B::kMaxRows>
  static void RunRows(const PackedCodes& matrix, const QuantizedTile& t, const uint8_t* panel) {
    if constexpr (kRows > 1) {
      if (t.rows < kRows) {
        return RunRows<kRounded, kRows - 1>(matrix, t, panel);
      }
    }
    RunTile<kRounded, kRows>(matrix, t, panel);
  }
};

// Rounds the inputs of one row. Sums each half of a group separately, since in some formats the
// halves have different scales.
template <typename B>
void RoundInputs(const float* x, int64_t num_groups, int8_t* codes, float* scales, int32_t* sums) {
  for (int64_t g = 0; g < num_groups; ++g) {
    int8_t* const to = codes + g * kGroupWeights;
    scales[g] = QuantizeVector<typename B::Float>(
        x + g * kGroupWeights, kGroupWeights, reinterpret_cast<Int8*>(to));
    for (int half = 0; half < 2; ++half) {
      int32_t sum = 0;
      for (int k = 0; k < kGroupWeights / 2; ++k) {
        sum += to[half * kGroupWeights / 2 + k];
      }
      sums[2 * g + half] = sum;
    }
  }
}

template <typename B>
void MultiplyQuantized(const PackedCodes& matrix, const QuantizedTile& t, const uint8_t* panel) {
  switch (matrix.format) {
    case WeightFormat::kQ4_0:
      return QuantizedKernel<B, WeightFormat::kQ4_0>::Run(matrix, t, panel);
    case WeightFormat::kQ4_1:
      return QuantizedKernel<B, WeightFormat::kQ4_1>::Run(matrix, t, panel);
    case WeightFormat::kQ5_0:
      return QuantizedKernel<B, WeightFormat::kQ5_0>::Run(matrix, t, panel);
    case WeightFormat::kQ5_1:
      return QuantizedKernel<B, WeightFormat::kQ5_1>::Run(matrix, t, panel);
    case WeightFormat::kQ8_0:
      return QuantizedKernel<B, WeightFormat::kQ8_0>::Run(matrix, t, panel);
    case WeightFormat::kQ4K:
      return QuantizedKernel<B, WeightFormat::kQ4K>::Run(matrix, t, panel);
    case WeightFormat::kQ5K:
      return QuantizedKernel<B, WeightFormat::kQ5K>::Run(matrix, t, panel);
    case WeightFormat::kQ6K:
      return QuantizedKernel<B, WeightFormat::kQ6K>::Run(matrix, t, panel);
    case WeightFormat::kIq4Nl:
      return QuantizedKernel<B, WeightFormat::kIq4Nl>::Run(matrix, t, panel);
    case WeightFormat::kIq4Xs:
      return QuantizedKernel<B, WeightFormat::kIq4Xs>::Run(matrix, t, panel);
    default:  // CpuBackend::CanMultiply refuses all other formats
      break;
  }
}

template <typename B>
constexpr QuantizedKernels KernelsOf() {
  return {.lanes = B::kLanes,
          .max_rows = B::kMaxRows,
          .round_inputs = &RoundInputs<B>,
          .multiply = &MultiplyQuantized<B>};
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_QUANTIZED_KERNEL_INL_H_
