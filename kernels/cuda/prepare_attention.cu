// RMS norm and rotary embedding of queries and keys, and the write to the KV cache, in one pass.
//
// A group of lanes computes one query, key or value head. Its lane i has dims 8 i .. 8 i + 7 of the
// lower half of the head, and the same dims of the upper half. So the two dims of a rotation are in
// one thread, and every access moves 8 elements (16 bytes of T, 8 bytes of e4m3). The stores of a
// group together write whole rows. A group has 4, 8 or 16 lanes, the least power of two >= head_dim
// / 16; at head_dim 80, 96 and 112 its last lanes hold zeros. Lanes exchange values only in the
// butterfly sum within a group, so a head's result depends on the head alone. Heads are numbered
// token by token, so only a few CTAs compute the heads of a token. They read the token's row of the
// rotation tables from L1.
//
// Cost:      2 bytes read and 2 written per element of q, and 2 read and 1 or 2 written per element
//            of k or v. For 64 tokens the launch takes most of the time. 8192 tokens with 32 query,
//            8 key and 8 value heads of 128 move 200 MB, 47 us at 4.3 TB/s.
// Registers: 48 (sm_80 and sm_90), no shared memory: 10 CTAs of 128 threads per SM.
// Source:    rotary embedding, Su et al. 2021, eq. 34, in the half-split layout of Hugging Face.
#include <bit>
#include <cstdint>

#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/early_start.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kElements = 8;  // elements of a lane in each half of a head

struct PrepareLaunch {
  PrepareAttentionParams params;
  int32_t block_shift = 0;  // log2 of the block size
  float inverse_k_scale = 1.0F;
  float inverse_v_scale = 1.0F;
};

// A lane's part of a head.
struct LaneDims {
  float low[kElements] = {};   // dims 8 lane .. 8 lane + 7
  float high[kElements] = {};  // the same dims of the upper half
};

template <int kHeadDim>
constexpr int kLanesPerHead = static_cast<int>(std::bit_ceil(unsigned{kHeadDim / 16}));

QUIRE_DEVICE float SumOfSquares(const LaneDims& x) {
  float sum = 0.0F;
  QUIRE_UNROLL
  for (int i = 0; i < kElements; ++i) {
    sum += x.low[i] * x.low[i];
  }
  QUIRE_UNROLL
  for (int i = 0; i < kElements; ++i) {
    sum += x.high[i] * x.high[i];
  }
  return sum;
}

QUIRE_DEVICE void Scale(float (&x)[kElements], float factor) {
  QUIRE_UNROLL
  for (int i = 0; i < kElements; ++i) {
    x[i] *= factor;
  }
}

QUIRE_DEVICE void Multiply(float (&x)[kElements], const float* weight) {
  float w[kElements];
  LoadVector<float, kElements>(weight, w);
  QUIRE_UNROLL
  for (int i = 0; i < kElements; ++i) {
    x[i] *= w[i];
  }
}

// cos, sin: the table entries for the lane's dims at the token's position.
QUIRE_DEVICE void Rotate(LaneDims& x, const float* cos, const float* sin) {
  float c[kElements];
  float s[kElements];
  LoadVector<float, kElements>(cos, c);
  LoadVector<float, kElements>(sin, s);
  QUIRE_UNROLL
  for (int i = 0; i < kElements; ++i) {
    float low = x.low[i];
    float high = x.high[i];
    x.low[i] = low * c[i] - high * s[i];
    x.high[i] = high * c[i] + low * s[i];
  }
}

template <typename T, typename Cache, int kHeadDim>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kThreads, 8) PrepareAttentionKernel(PrepareLaunch launch) {
  WaitForEarlierOperation();
  StartNext();
  constexpr int kLanes = kLanesPerHead<kHeadDim>;
  constexpr int kHalf = kHeadDim / 2;
  const PrepareAttentionParams& params = launch.params;
  const KvCacheLayout& layout = params.cache.layout;
  const int first_dim = static_cast<int>(threadIdx.x) % kLanes * kElements;
  const int32_t index = static_cast<int32_t>(blockIdx.x) * (kThreads / kLanes) +
                        static_cast<int>(threadIdx.x) / kLanes;
  const int32_t heads_per_token = params.num_heads + 2 * layout.num_kv_heads;
  const int32_t token = index / heads_per_token;
  const int32_t head = index % heads_per_token;
  const bool is_query = head < params.num_heads;
  const bool is_value = head >= params.num_heads + layout.num_kv_heads;
  const int64_t slot = token < params.num_tokens ? params.slot_mapping[token] : -1;
  // Padding queries are rotated at position 0, since their own positions may be outside the tables.
  const bool is_padding = slot < 0;
  const bool has_dims = token < params.num_tokens && first_dim < kHalf && (is_query || !is_padding);

  // ---- Read: [heads_per_token, head_dim] of a token ----
  T* row = static_cast<T*>(params.qkv) + int64_t{index} * kHeadDim + first_dim;
  LaneDims x;
  if (has_dims) {
    LoadVector<T, kElements>(row, x.low);
    LoadVector<T, kElements>(row + kHalf, x.high);
  }

  // ---- Norm; lanes without dims take part in the sums, too ----
  if (params.q_norm != nullptr || params.k_norm != nullptr) {
    float sum = SumOfSquares(x);
    QUIRE_UNROLL
    for (int lane_mask = kLanes / 2; lane_mask > 0; lane_mask /= 2) {
      sum += __shfl_xor_sync(kWholeWarp, sum, lane_mask);
    }
    const float* weight = is_query ? params.q_norm : is_value ? nullptr : params.k_norm;
    if (has_dims && weight != nullptr) {
      const float inverse = Rsqrt(sum / static_cast<float>(kHeadDim) + params.norm_eps);
      Scale(x.low, inverse);
      Scale(x.high, inverse);
      Multiply(x.low, weight + first_dim);
      Multiply(x.high, weight + kHalf + first_dim);
    }
  }
  if (!has_dims) {
    return;
  }

  // ---- Rotation ----
  if (params.rope_cos != nullptr && !is_value) {
    const int64_t position = is_padding ? 0 : params.positions[token];
    const int64_t at = position * kHalf + first_dim;
    Rotate(x, params.rope_cos + at, params.rope_sin + at);
  }

  // ---- Write: q in place, k and v to their slot ----
  if (is_query) {
    StoreVector<T, kElements>(row, x.low);
    StoreVector<T, kElements>(row + kHalf, x.high);
    return;
  }
  if constexpr (sizeof(Cache) == 1) {
    const float inverse = is_value ? launch.inverse_v_scale : launch.inverse_k_scale;
    Scale(x.low, inverse);
    Scale(x.high, inverse);
  }
  const auto block = static_cast<BlockId>(slot >> launch.block_shift);
  const auto offset = static_cast<int32_t>(slot & ((1 << launch.block_shift) - 1));
  const int32_t kv_head = head - params.num_heads - (is_value ? layout.num_kv_heads : 0);
  auto* row_of_slot_0 =
      reinterpret_cast<uint8_t*>(static_cast<Cache*>(params.cache.base) +
                                 (is_value ? layout.ValueOffset(block, params.layer, kv_head)
                                           : layout.KeyOffset(block, params.layer, kv_head)));
  const auto place = [&](int dim) {
    constexpr int kSize = static_cast<int>(sizeof(Cache));
    constexpr int kRowChunks = kHeadDim * kSize / 16;
    const int byte = dim * kSize;
    return reinterpret_cast<Cache*>(
        row_of_slot_0 + KvChunkOffset(kRowChunks, 1 << launch.block_shift, offset, byte / 16) +
        byte % 16);
  };
  StoreVector<Cache, kElements>(place(first_dim), x.low);
  StoreVector<Cache, kElements>(place(first_dim + kHalf), x.high);
}

}  // namespace

int PrepareAttention(const PrepareAttentionParams& params, DType activations, Stream stream) {
  const KvCacheLayout& layout = params.cache.layout;
  const auto block_size = static_cast<uint32_t>(layout.block_size_tokens);
  if (!HasSwizzledRows(layout)) {
    return kUnsupported;
  }
  PrepareLaunch launch;
  launch.params = params;
  launch.block_shift = std::countr_zero(block_size);
  launch.inverse_k_scale = 1.0F / params.k_scale;
  launch.inverse_v_scale = 1.0F / params.v_scale;
  return DispatchCacheElement(activations, layout.dtype, [&]<typename T, typename Cache>() {
    return DispatchHeadDim(layout.head_dim, [&]<int kHeadDim>() {
      constexpr int32_t kHeads = kThreads / kLanesPerHead<kHeadDim>;
      const int32_t heads = params.num_tokens * (params.num_heads + 2 * layout.num_kv_heads);
      if (heads == 0) {
        return 0;
      }
      return QUIRE_LAUNCH_EARLY((PrepareAttentionKernel<T, Cache, kHeadDim>),
                                dim3(static_cast<uint32_t>((heads + kHeads - 1) / kHeads)),
                                dim3(kThreads),
                                0,
                                stream,
                                launch);
    });
  });
}

}  // namespace quire::gpu
