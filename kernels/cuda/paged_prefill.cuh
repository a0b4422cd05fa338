// Attention of many queries over a paged context, on tensor cores (mma m16n8k16): prefill, chunked
// prefill over earlier context, or a single query.
//
// Work. A CTA computes half a PrefillItem of one KV head, which is kMmaRows rows. A row is one
// token and one of the query heads that share the KV head. So these query heads share the copies of
// keys and values. Row r of a sequence is the query at position
// (seq_len - query_len) + r / num_queries_per_kv_head. The position alone decides which keys the
// row attends to, so a first prompt, a later chunk and a decode run the same code. The grid runs
// items in the caller's order, all KV heads of an item together. If the longest items come first,
// few CTAs run alone at the end.
//
// Warps. A warp has 32 rows, so that each fragment of K and V that is read from shared memory
// serves two mma. With 16 rows per warp, the reads would take longer (32 KB, 256 cycles for a tile
// of head_dim 128) than the mma that use them (about 200 cycles of an SM). At head_dim 256 the
// accumulators leave registers for only 16 rows.
//
// Pipeline. K and V have one buffer each, and cp.async fills them in turns:
//   wait for K(j)  | start V(j)    | S = Q K^T            V arrives meanwhile
//   wait for V(j)  | start K(j+1)  | softmax, O += P V    K arrives meanwhile
// with a barrier after each wait. K and V have no second buffers, because these would halve the
// number of CTAs per SM, and several CTAs hide each other's waits. FindPlaces looks up the
// addresses of a tile's rows one tile ahead.
//
// Order of sums. Tiles begin at multiples of kPrefillTileKeys from position 0, wherever the item's
// queries begin. A tile that a row does not attend to leaves the row's state unchanged, bit for
// bit. So a row's result does not depend on how the prompt was cut into chunks or the rows into
// items.
//
// Registers, shared memory and CTAs per SM, on sm_90 with bf16. A CTA has 64 threads, or 128 at
// head_dim 256.
//   head_dim                   64   80   96   112  128  256
//   registers per thread       254  243  255  255  254  252   (no spills)
//   KB of shared memory        28   34   40   46   52   100
//   CTAs per SM                4    4    4    4    4    2     (registers set the limit)
// On devices that allow a CTA only 99 KB (compute capability 8.6, 8.9, 12.x), CTAs of head_dim 256
// over a 16-bit cache have half the rows.
//
// Source: FlashAttention-2, Dao 2023, sections 3.1 to 3.3; PagedAttention, Kwon et al. 2023.
#ifndef QUIRE_KERNELS_CUDA_PAGED_PREFILL_CUH_
#define QUIRE_KERNELS_CUDA_PAGED_PREFILL_CUH_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/tensor_core.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/prefill_rows.cuh"

namespace quire::gpu {

// Number of rows of a CTA. If shared memory is too small for them, a CTA has half as many
// (PrefillShape).
inline constexpr int kMmaRows = kPrefillRows / 2;

// Number of keys in a tile. Another value would change the bits of results.
inline constexpr int kPrefillTileKeys = 64;

// State that is equal in all threads, kept once in shared memory because registers are scarce.
struct PrefillCta {
  ItemRows rows;
  PagedKv kv;
};

// kMaxSharedBytes bounds a CTA's shared memory. If kMmaRows rows need more, a CTA has half as many
// rows. A row's bits are the same in both cases.
template <typename T, typename Cache, int kHeadDim, int kMaxSharedBytes = kMostSharedBytes>
struct PrefillShape {
  using M = MmaElement<T, Cache>;
  static constexpr int kRowsPerWarp = kHeadDim <= 128 ? 32 : 16;
  static constexpr int kRowTiles = kRowsPerWarp / kTileRows;  // tiles of 16 rows per warp
  static constexpr int kScoreTiles = kPrefillTileKeys / 8;    // C fragments of S per row tile
  static constexpr int kOutTiles = kHeadDim / 8;              // C fragments of O per row tile
  static constexpr bool kQueryInRegisters = kHeadDim <= 64;
  // True for bf16 queries on an e4m3 cache. Such queries are stored as f16, with one factor per
  // row.
  static constexpr bool kHasRowFactors = !std::is_same_v<M, T>;

  // Shared memory, in this order: queries, keys, values, offsets of rows (FindPlaces), factors of
  // rows (StoreQueryRow), PrefillCta.
  static constexpr int kQueryStride = QueryTile<kHeadDim>::kRowStride;
  static constexpr int kTileStride = KvTile<Cache, kHeadDim>::kRowStride;
  static constexpr int kRowChunks = KvTile<Cache, kHeadDim>::kRowChunks;
  static constexpr int kTileBytes = kPrefillTileKeys * kTileStride;
  static constexpr int kPlaceBytes = 2 * kPrefillTileKeys * static_cast<int>(sizeof(int64_t));
  static constexpr int kCtaBytes = static_cast<int>(sizeof(PrefillCta));
  static constexpr int kBytesPerRow =
      kQueryStride + (kHasRowFactors ? static_cast<int>(sizeof(float)) : 0);
  static constexpr int kOtherBytes = 2 * kTileBytes + kPlaceBytes + kCtaBytes;
  static constexpr int kRows =
      kMmaRows * kBytesPerRow + kOtherBytes <= kMaxSharedBytes ? kMmaRows : kMmaRows / 2;
  static constexpr int kQueryBytes = kRows * kQueryStride;
  static constexpr int kFactorBytes = kRows * kBytesPerRow - kQueryBytes;
  static constexpr int kSharedBytes = kRows * kBytesPerRow + kOtherBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes);

  static constexpr int kCtasPerItem = kPrefillRows / kRows;
  static constexpr int kThreads = kRows / kRowsPerWarp * kWarpSize;
  // The compiler limits registers so that this many CTAs fit on an SM. A larger number would leave
  // fewer than 255 registers per thread.
  static constexpr int kMinCtas = 256 / kThreads;
  static_assert(kThreads >= kPrefillTileKeys);  // FindPlaces needs one thread per key
};

// ---- Global to shared ---------------------------------------------------------------------------

// With a 16-bit cache, starts the copy of the warp's rows of Q. With an e4m3 cache, converts and
// stores the rows. Rows past the sequence's end become zeros. Writes factors if kHasRowFactors.
template <typename T, typename Cache, int kHeadDim>
QUIRE_DEVICE void CopyQueries(uint8_t* queries,
                              [[maybe_unused]] float* factors,
                              const PagedAttentionParams& args,
                              const ItemRows& rows,
                              int32_t warp_row) {
  using Shape = PrefillShape<T, Cache, kHeadDim>;
  const auto* q = static_cast<const T*>(args.q);
  int lane = static_cast<int>(threadIdx.x % kWarpSize);
  if constexpr (sizeof(Cache) == 2) {
    constexpr int kChunks = kHeadDim / 8;  // 16-byte chunks of a row
    for (int i = lane; i < Shape::kRowsPerWarp * kChunks; i += kWarpSize) {
      int32_t row = warp_row + i / kChunks;
      bool valid = row < rows.num_rows;
      const T* source = q + rows.PlaceOf(valid ? row : 0, args.q_row_stride, kHeadDim);
      CopyAsync16(queries + i / kChunks * Shape::kQueryStride + i % kChunks * 16,
                  source + i % kChunks * 8,
                  valid);
    }
  } else {
    QUIRE_UNROLL_BY(4)
    for (int i = 0; i < Shape::kRowsPerWarp; ++i) {
      int32_t row = warp_row + i;
      const T* source =
          row < rows.num_rows ? q + rows.PlaceOf(row, args.q_row_stride, kHeadDim) : nullptr;
      float factor = StoreQueryRow<T, Cache, kHeadDim>(queries + i * Shape::kQueryStride, source);
      if (Shape::kHasRowFactors && lane == 0) {
        factors[i] = factor;
      }
    }
  }
}

// Sets places[i] to the byte offset of the block of row i of the tile, counted from kv.keys for K
// and from kv.values for V. Skips rows for positions outside [rows.begin, rows.end).
QUIRE_DEVICE void FindPlaces(int64_t* places, const PagedKv& kv, const ItemRows& rows, int tile) {
  auto row = static_cast<int32_t>(threadIdx.x);
  int32_t position = tile * kPrefillTileKeys + row;
  if (row < kPrefillTileKeys && position >= rows.begin && position < rows.end) {
    places[row] = BlockOf(kv, position) * kv.block_stride;
  }
}

// Starts the CTA's copy of a tile of K or V. plane: kv.keys or kv.values. In `buffer`, the chunks
// of a row are in the order of dims. Rows for positions outside [rows.begin, rows.end) become zeros
// and are not read. Afterwards the caller must call CommitCopies.
template <typename Shape>
QUIRE_DEVICE void CopyRows(uint8_t* buffer,
                           const uint8_t* plane,
                           int32_t block_shift,
                           const int64_t* places,
                           const ItemRows& rows,
                           int tile) {
  constexpr int kChunks = Shape::kRowChunks;
  int thread = static_cast<int>(threadIdx.x);
  int32_t begin = rows.begin - tile * kPrefillTileKeys;
  auto num_rows = static_cast<uint32_t>(rows.end - rows.begin);
  auto copy = [&](int row, int chunk) {
    bool valid = static_cast<uint32_t>(row - begin) < num_rows;
    const int32_t block_size = 1 << block_shift;
    const int32_t slot = (tile * kPrefillTileKeys + row) & (block_size - 1);
    const uint8_t* source =
        plane + (valid ? places[row] : 0) + KvChunkOffset(kChunks, block_size, slot, chunk);
    CopyAsync16(buffer + row * Shape::kTileStride + chunk * 16, source, valid);
  };
  // Unrolled only by four, since the addresses of a whole tile would not fit the registers.
  if constexpr (Shape::kThreads % kChunks == 0) {
    constexpr int kRows = Shape::kThreads / kChunks;
    QUIRE_UNROLL_BY(4)
    for (int first = 0; first < kPrefillTileKeys; first += kRows) {
      copy(first + thread / kChunks, thread % kChunks);
    }
  } else {
    QUIRE_UNROLL_BY(4)
    for (int i = thread; i < kPrefillTileKeys * kChunks; i += Shape::kThreads) {
      copy(i / kChunks, i % kChunks);
    }
  }
}

// ---- One warp: kRowTiles tiles of 16 rows -------------------------------------------------------

template <typename Shape>
using WarpScores = float[Shape::kRowTiles][Shape::kScoreTiles][4];
template <typename Shape>
using WarpWeights = uint32_t[Shape::kRowTiles][kPrefillTileKeys / 16][4];
template <typename Shape>
using WarpOut = float[Shape::kRowTiles][Shape::kOutTiles][4];

// scores += Q K^T for all row tiles. Does the same as AddScores, but reads each fragment of K once
// for all row tiles.
template <typename T, typename Cache, int kHeadDim, typename Queries>
QUIRE_DEVICE void AddScoresOfRows(WarpScores<PrefillShape<T, Cache, kHeadDim>>& scores,
                                  const Queries& queries,
                                  const uint8_t* keys) {
  using Shape = PrefillShape<T, Cache, kHeadDim>;
  using M = typename Shape::M;
  int lane = static_cast<int>(threadIdx.x % kWarpSize);
  auto add = [&](int n, const uint32_t(&a)[Shape::kRowTiles][4], const uint32_t(&b)[2]) {
    QUIRE_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      Mma16816<M>(scores[m][n], a[m], b);
    }
  };
  auto get = [&](int k, uint32_t(&a)[Shape::kRowTiles][4]) {
    QUIRE_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      queries[m].Get(k, a[m]);
    }
  };
  if constexpr (sizeof(Cache) == 2) {
    int lane_row = lane / 16 * 8 + lane % 8;
    const uint8_t* lane_keys = keys + lane_row * Shape::kTileStride + lane / 8 % 2 * 16;
    QUIRE_UNROLL
    for (int k = 0; k < kHeadDim / 16; ++k) {
      uint32_t a[Shape::kRowTiles][4];
      get(k, a);
      QUIRE_UNROLL
      for (int n = 0; n < kPrefillTileKeys / 16; ++n) {
        uint32_t b[4];
        LoadMatrixX4(b, lane_keys + n * 16 * Shape::kTileStride + k * 32);
        add(2 * n, a, {b[0], b[1]});
        add(2 * n + 1, a, {b[2], b[3]});
      }
    }
  } else {
    // A load reads one chunk (16 dims) of 32 keys: four matrices of 8 keys. From each matrix, a
    // lane gets four bytes of key lane / 4, from byte 4 (lane % 4) on.
    const uint8_t* lane_keys = keys + lane * Shape::kTileStride;
    // If Q is in registers, k must be constant, so the loop is unrolled completely. Else the loop
    // is unrolled only by two, because conversions of more chunks at once would spill registers.
    [[maybe_unused]] constexpr int kUnroll = Shape::kQueryInRegisters ? kHeadDim / 16 : 2;
    QUIRE_UNROLL_BY(kUnroll)
    for (int k = 0; k < kHeadDim / 16; ++k) {
      uint32_t a[Shape::kRowTiles][4];
      get(k, a);
      QUIRE_UNROLL
      for (int n = 0; n < kPrefillTileKeys / 32; ++n) {
        uint32_t bytes[4];
        LoadMatrixX4(bytes, lane_keys + n * 32 * Shape::kTileStride + k * 16);
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          add(4 * n + i, a, {LowF8ToF16(bytes[i]), HighF8ToF16(bytes[i])});
        }
      }
    }
  }
}

// out += P V for all row tiles. Does the same as AddValues, but reads each fragment of V once for
// all row tiles.
template <typename T, typename Cache, int kHeadDim>
QUIRE_DEVICE void AddValuesOfRows(WarpOut<PrefillShape<T, Cache, kHeadDim>>& out,
                                  const WarpWeights<PrefillShape<T, Cache, kHeadDim>>& weights,
                                  const uint8_t* values) {
  using Shape = PrefillShape<T, Cache, kHeadDim>;
  int lane = static_cast<int>(threadIdx.x % kWarpSize);
  auto add = [&](int n, int d, const uint32_t(&b)[2]) {
    QUIRE_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      Mma16816<typename Shape::M>(out[m][d], weights[m][n], b);
    }
  };
  if constexpr (sizeof(Cache) == 2) {
    const uint8_t* lane_values = values + lane % 16 * Shape::kTileStride + lane / 16 * 16;
    QUIRE_UNROLL
    for (int n = 0; n < kPrefillTileKeys / 16; ++n) {
      QUIRE_UNROLL
      for (int d = 0; d < kHeadDim / 16; ++d) {
        uint32_t b[4];
        LoadMatrixX4Transposed(b, lane_values + n * 16 * Shape::kTileStride + d * 32);
        add(n, 2 * d, {b[0], b[1]});
        add(n, 2 * d + 1, {b[2], b[3]});
      }
    }
  } else {
    // A load reads one chunk (16 dims) of 32 keys: four matrices of 8 keys. AddValues describes the
    // layout of the loaded registers.
    const uint8_t* lane_values = values + lane * Shape::kTileStride;
    QUIRE_UNROLL
    for (int n = 0; n < kPrefillTileKeys / 16; n += 2) {
      QUIRE_UNROLL
      for (int d = 0; d < kHeadDim / 16; ++d) {
        uint32_t bytes[4];
        LoadMatrixX4Transposed(bytes, lane_values + n * 16 * Shape::kTileStride + d * 16);
        QUIRE_UNROLL
        for (int i = 0; i < 2; ++i) {
          uint32_t low = BytePermute(bytes[2 * i], 0, 0x3120);
          uint32_t high = BytePermute(bytes[2 * i + 1], 0, 0x3120);
          add(n + i, 2 * d, {LowF8ToF16(low), LowF8ToF16(high)});
          add(n + i, 2 * d + 1, {HighF8ToF16(low), HighF8ToF16(high)});
        }
      }
    }
  }
}

// Writes the warp's rows of O to global memory, 16 bytes per store. The rows pass through the
// shared memory of the warp's queries, which no other warp reads.
template <typename T, typename Cache, int kHeadDim>
QUIRE_DEVICE void StoreRows(
    const WarpOut<PrefillShape<T, Cache, kHeadDim>>& out,
    const SoftmaxState (&states)[PrefillShape<T, Cache, kHeadDim>::kRowTiles][2],
    uint8_t* queries,
    const PagedAttentionParams& args,
    const ItemRows& rows,
    int32_t warp_row) {
  using Shape = PrefillShape<T, Cache, kHeadDim>;
  int lane = static_cast<int>(threadIdx.x % kWarpSize);
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum = RowSum(states[m][half].sum);
      float factor = sum > 0.0F ? args.v_scale / sum : sum;
      auto* row = reinterpret_cast<uint32_t*>(queries + (m * kTileRows + half * 8 + lane / 4) *
                                                            Shape::kQueryStride);
      QUIRE_UNROLL
      for (int n = 0; n < Shape::kOutTiles; n += 2) {
        // The lane has four of 16 dims (AccumulatorDim). With a 16-bit cache, adjacent dims lie in
        // one C tile; with e4m3, they lie in different tiles.
        const float(&x)[4] = out[m][n];
        const float(&y)[4] = out[m][n + 1];
        const int i = 2 * half;
        if constexpr (sizeof(Cache) == 2) {
          row[AccumulatorDim<Cache>(n, 0, lane % 4) / 2] =
              Pack2<T>(x[i] * factor, x[i + 1] * factor);
          row[AccumulatorDim<Cache>(n + 1, 0, lane % 4) / 2] =
              Pack2<T>(y[i] * factor, y[i + 1] * factor);
        } else {
          row[AccumulatorDim<Cache>(n, 0, lane % 4) / 2] = Pack2<T>(x[i] * factor, y[i] * factor);
          row[AccumulatorDim<Cache>(n, 1, lane % 4) / 2] =
              Pack2<T>(x[i + 1] * factor, y[i + 1] * factor);
        }
      }
    }
  }
  __syncwarp();

  constexpr int kChunks = kHeadDim / 8;  // 16-byte chunks of a row
  int64_t token_stride = int64_t{args.num_heads} * kHeadDim;
  for (int i = lane; i < Shape::kRowsPerWarp * kChunks; i += kWarpSize) {
    int32_t row = warp_row + i / kChunks;
    if (row < rows.num_rows) {
      uint32_t words[4];
      LoadWords<16>(queries + i / kChunks * Shape::kQueryStride + i % kChunks * 16, words);
      T* to = static_cast<T*>(args.out) + rows.PlaceOf(row, token_stride, kHeadDim);
      StoreWords<16>(to + i % kChunks * 8, words);
    }
  }
}

// ---- Kernel -------------------------------------------------------------------------------------

// Grid: num_items * kCtasPerItem * num_kv_heads. Shared memory: Shape::kSharedBytes.
template <typename T, typename Cache, int kHeadDim, int kMaxSharedBytes>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS((PrefillShape<T, Cache, kHeadDim, kMaxSharedBytes>::kThreads),
                                      (PrefillShape<T, Cache, kHeadDim, kMaxSharedBytes>::kMinCtas))
    PrefillKernel(const PrefillParams params) {
  using Shape = PrefillShape<T, Cache, kHeadDim, kMaxSharedBytes>;
  const PagedAttentionParams& args = params.attention;
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int warp = static_cast<int>(threadIdx.x / kWarpSize);

  // ---- Shared memory ----
  QUIRE_SHARED_MEMORY(shared);
  uint8_t* const queries = shared + warp * Shape::kRowsPerWarp * Shape::kQueryStride;
  uint8_t* const keys = shared + Shape::kQueryBytes;
  uint8_t* const values = keys + Shape::kTileBytes;
  auto* const places = reinterpret_cast<int64_t*>(values + Shape::kTileBytes);
  auto* const factors = reinterpret_cast<float*>(places + 2 * kPrefillTileKeys);
  auto* const cta =
      reinterpret_cast<PrefillCta*>(reinterpret_cast<uint8_t*>(factors) + Shape::kFactorBytes);
  const auto places_of = [&](int tile) { return places + tile % 2 * kPrefillTileKeys; };

  // ---- The CTA's part of an item ----
  const auto num_kv_heads = static_cast<uint32_t>(args.cache.layout.num_kv_heads);
  const auto kv_head = static_cast<int32_t>(blockIdx.x % num_kv_heads);
  PrefillItem item = params.plan.items[blockIdx.x / num_kv_heads / Shape::kCtasPerItem];
  item.first_row +=
      static_cast<int32_t>(blockIdx.x / num_kv_heads % Shape::kCtasPerItem) * Shape::kRows;
  const ItemRows rows =
      MakeItemRows(params.attention, params.num_queries_per_kv_head, item, kv_head, Shape::kRows);
  if (rows.end <= rows.begin) {
    return;
  }
  const PagedKv kv = MakePagedKv<Cache>(args, item.sequence, kv_head, params.block_shift);
  if (threadIdx.x == 0) {
    *cta = {rows, kv};
  }
  const int32_t warp_row = rows.first_row + warp * Shape::kRowsPerWarp;
  const bool has_rows = warp_row < rows.num_rows;
  const int first_tile = rows.begin / kPrefillTileKeys;
  const int past_tile = (rows.end + kPrefillTileKeys - 1) / kPrefillTileKeys;

  // ---- First copies: Q, and K of the first tile ----
  FindPlaces(places_of(first_tile), kv, rows, first_tile);
  CopyQueries<T, Cache, kHeadDim>(
      queries, factors + warp * Shape::kRowsPerWarp, args, rows, warp_row);
  CommitCopies();
  __syncthreads();  // makes the results of FindPlaces visible
  CopyRows<Shape>(keys, kv.keys, kv.block_shift, places_of(first_tile), rows, first_tile);
  CommitCopies();
  WaitCopies<1>();
  __syncwarp();  // now the warp's rows of Q have landed
  QueryFragments<kHeadDim, Shape::kQueryInRegisters> query[Shape::kRowTiles];
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    query[m].Load(queries + m * kTileRows * Shape::kQueryStride);
  }

  WarpOut<Shape> out = {};
  SoftmaxState states[Shape::kRowTiles][2];
  // Initialized by hand: in an array of arrays, nvcc 13.0 applies member initializers only to the
  // first array, and sets the others to zeros.
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      states[m][half] = {.max = -INFINITY, .sum = 0.0F};
    }
  }
  for (int tile = first_tile; tile < past_tile; ++tile) {
    // ---- S = Q K^T: [kRowsPerWarp, kPrefillTileKeys] a warp ----
    WaitCopies<0>();
    __syncthreads();  // now K has landed, and no warp reads the previous V
    CopyRows<Shape>(values, cta->kv.values, cta->kv.block_shift, places_of(tile), cta->rows, tile);
    CommitCopies();
    WarpScores<Shape> scores = {};
    if (has_rows) {
      AddScoresOfRows<T, Cache, kHeadDim>(scores, query, keys);
    }
    FindPlaces(places_of(tile + 1), cta->kv, cta->rows, tile + 1);

    WaitCopies<0>();
    __syncthreads();  // now V and the next offsets are visible, and no warp reads K
    if (tile + 1 < past_tile) {
      CopyRows<Shape>(
          keys, cta->kv.keys, cta->kv.block_shift, places_of(tile + 1), cta->rows, tile + 1);
      CommitCopies();
    }
    if (!has_rows) {
      continue;
    }

    // ---- Softmax, 16 rows at a time ----
    const int32_t first_key = tile * kPrefillTileKeys;
    const bool needs_mask =
        first_key < cta->rows.common_begin || first_key + kPrefillTileKeys > cta->rows.common_end;
    WarpWeights<Shape> weights;
    QUIRE_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      const int32_t lane_row = NotHoisted(warp_row + m * kTileRows + lane / 4);
      const float* lane_factors = factors + (lane_row - cta->rows.first_row);
      if (!params.has_plain_scores) {
        ScoreRow score_rows[2];
        QUIRE_UNROLL
        for (int half = 0; half < 2; ++half) {
          int32_t row = lane_row + half * 8;
          float factor = Shape::kHasRowFactors ? lane_factors[half * 8] : 1.0F;
          score_rows[half] =
              MakeScoreRow(args, cta->rows.HeadOf(row), cta->rows.PositionOf(row), factor);
        }
        ScaleScores(scores[m], args.alibi_slopes != nullptr, score_rows, first_key);
      }
      if (needs_mask) {
        ScoreRow score_rows[2];
        QUIRE_UNROLL
        for (int half = 0; half < 2; ++half) {
          score_rows[half].position = cta->rows.PositionOf(lane_row + half * 8);
          score_rows[half].begin = FirstKey(score_rows[half].position, args.sliding_window);
        }
        MaskScores(scores[m], score_rows, first_key);
      }
      float rescale[2];
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float scale = 1.0F;
        if (params.has_plain_scores) {
          scale = params.score_scale;
          if constexpr (Shape::kHasRowFactors) {
            scale *= lane_factors[half * 8];
          }
        }
        rescale[half] = UpdateScaledSoftmax(states[m][half], scores[m], half, scale);
      }
      PackWeights<typename Shape::M, kPrefillTileKeys>(weights[m], scores[m]);
      // If all factors are 1, rescaling would change no bit. This is common, because a row's
      // maximum seldom grows after the first tiles.
      bool is_changed = rescale[0] != 1.0F || rescale[1] != 1.0F;
      if (__any_sync(kWholeWarp, is_changed ? 1 : 0) != 0) {
        RescaleAccumulators(out[m], rescale);
      }
    }

    // ---- O += P V: [kRowsPerWarp, kHeadDim] a warp ----
    AddValuesOfRows<T, Cache, kHeadDim>(out, weights, values);
  }

  if (has_rows) {
    StoreRows<T, Cache, kHeadDim>(out, states, queries, args, cta->rows, warp_row);
  }
}

template <int kHeadDim>
int RunPrefill(const PrefillParams& params, Stream stream) {
  const PagedAttentionParams& args = params.attention;
  return DispatchCacheElement(
      params.activations, args.cache.layout.dtype, [&]<typename T, typename Cache>() {
        constexpr int kSharedBytes = PrefillShape<T, Cache, kHeadDim>::kSharedBytes;
        return DispatchSharedBytes<kSharedBytes>([&]<int kMaxSharedBytes>() {
          using Shape = PrefillShape<T, Cache, kHeadDim, kMaxSharedBytes>;
          const int32_t num_ctas =
              params.plan.num_items * Shape::kCtasPerItem * args.cache.layout.num_kv_heads;
          if (num_ctas == 0) {
            return 0;
          }
          return QUIRE_LAUNCH((PrefillKernel<T, Cache, kHeadDim, kMaxSharedBytes>),
                              dim3(static_cast<uint32_t>(num_ctas)),
                              dim3(Shape::kThreads),
                              Shape::kSharedBytes,
                              stream,
                              params);
        });
      });
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PAGED_PREFILL_CUH_
