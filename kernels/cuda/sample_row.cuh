// A row of logits in the sampling kernel: how threads walk it, the rank of a token, and the results
// of the first pass. The head of sample.cu defines rank and passes.
//
// All threads of the CTA call a function together. A single thread may call RankOf, TokenOf and
// LogitOf.
#ifndef QUIRE_KERNELS_CUDA_SAMPLE_ROW_CUH_
#define QUIRE_KERNELS_CUDA_SAMPLE_ROW_CUH_

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/cta_integers.cuh"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

inline constexpr int kUnroll = 4;  // 16-byte loads in flight per thread

struct LogitRow {
  const float* logits;
  int32_t vocab_size;
  bool is_aligned;  // whether `logits` is 16-byte aligned
  // Each warp reads a segment of consecutive tokens, and each lane four of them (a quad) at a time.
  // vocab_size and the CTA's size alone decide which thread reads a token.
  int32_t quads_per_segment;
};

QUIRE_DEVICE LogitRow RowOf(const SampleParams& args, int32_t index) {
  const float* logits = args.logits + index * args.row_stride;
  const auto num_warps = static_cast<int32_t>(blockDim.x) / kWarpSize;
  const int32_t quads = (args.vocab_size + 3) / 4;
  const int32_t per_warp = (quads + num_warps - 1) / num_warps;
  return {logits,
          args.vocab_size,
          reinterpret_cast<uintptr_t>(logits) % 16 == 0,
          (per_warp + kWarpSize - 1) / kWarpSize * kWarpSize};
}

// Calls visit(token_id, logit) for each of this thread's tokens, by ascending id.
template <typename Visit>
QUIRE_DEVICE void ForEachToken(const LogitRow& row, Visit visit) {
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpSize);
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpSize);
  const int32_t begin = warp * row.quads_per_segment;
  const int32_t quads = (row.vocab_size + 3) / 4;
  const int32_t end = begin + row.quads_per_segment < quads ? begin + row.quads_per_segment : quads;
  const int32_t whole_quads = row.is_aligned ? row.vocab_size / 4 : 0;
  const int32_t whole_end = end < whole_quads ? end : whole_quads;

  int32_t quad = begin + lane;
  for (; quad + (kUnroll - 1) * kWarpSize < whole_end; quad += kUnroll * kWarpSize) {
    float logits[kUnroll][4];
    QUIRE_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      LoadVector(row.logits + 4 * (quad + u * kWarpSize), logits[u]);
    }
    QUIRE_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      QUIRE_UNROLL
      for (int e = 0; e < 4; ++e) {
        visit(4 * (quad + u * kWarpSize) + e, logits[u][e]);
      }
    }
  }
  for (; quad < end; quad += kWarpSize) {
    for (int32_t id = 4 * quad; id < 4 * quad + 4 && id < row.vocab_size; ++id) {
      visit(id, row.logits[id]);
    }
  }
}

// ---- Ranks ----

QUIRE_DEVICE uint64_t RankOf(float logit, TokenId token_id) {
  constexpr uint32_t kSign = uint32_t{1} << 31;
  const uint32_t bits = __float_as_uint(logit + 0.0F);  // the addition turns -0 into 0
  const uint32_t key = (bits & kSign) != 0 ? ~bits : bits | kSign;
  return uint64_t{key} << 32 | ~static_cast<uint32_t>(token_id);
}

QUIRE_DEVICE TokenId TokenOf(uint64_t rank) {
  return static_cast<TokenId>(~static_cast<uint32_t>(rank));
}

QUIRE_DEVICE float LogitOf(uint64_t rank) {
  constexpr uint32_t kSign = uint32_t{1} << 31;
  const auto key = static_cast<uint32_t>(rank >> 32);
  return __uint_as_float((key & kSign) != 0 ? key & ~kSign : ~key);
}

// ---- The first pass ----

// Result of ScanRow over one thread's tokens.
struct Scan {
  uint64_t best_rank;  // 0 if the thread has no tokens except banned ones
  float best_logit;
  float sum;  // sum of exp(logit - best_logit), or 0 if ScanRow<false> made this Scan
  uint32_t num_not_finite;
};

template <bool kWithSum>
QUIRE_DEVICE Scan ScanRow(const LogitRow& row) {
  float best = -INFINITY;
  TokenId best_id = 0;
  float sum = 0.0F;
  uint32_t num_not_finite = 0;
  ForEachToken(row, [&](TokenId token_id, float logit) {
    num_not_finite += fabsf(logit) <= FLT_MAX ? 0 : 1;
    if (logit > best) {
      if constexpr (kWithSum) {
        sum = sum * Exp2((best - logit) * kLog2E) + 1.0F;
      }
      best = logit;
      best_id = token_id;
    } else if constexpr (kWithSum) {
      sum += Exp2((logit - best) * kLog2E);
    }
  });
  return {best == -INFINITY ? 0 : RankOf(best, best_id), best, sum, num_not_finite};
}

// Result of Summarize for the whole row.
struct Summary {
  bool is_valid;  // all logits except banned ones are finite, and not all are banned
  float max_logit;
  uint64_t best_rank;
};

QUIRE_DEVICE Summary Summarize(const Scan& scan, uint32_t num_banned, CtaScratch* scratch) {
  const uint64_t faults = uint64_t{scan.num_not_finite} - num_banned;
  const bool is_finite = CtaSumOf(faults, scratch) == 0;
  const uint64_t best_rank = CtaMaxOf(scan.best_rank, scratch);
  const float max_logit = LogitOf(best_rank);
  return {is_finite && best_rank != 0 && max_logit <= FLT_MAX, max_logit, best_rank};
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_SAMPLE_ROW_CUH_
