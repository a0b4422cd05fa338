// Paged attention of one query per sequence, on tensor cores.
//
// Work. The context of a sequence is cut into splits of split_tokens absolute positions. An item is
// (sequence, split, KV head, up to 16 query heads of that KV head). A persistent grid strides over
// the items. Each CTA finds its items by searching split_start on the device, so that a captured
// graph can be replayed after the sequences have grown. Items of one split have consecutive
// numbers, since they read the same blocks.
//
// An item. The query heads are the 16 rows of the A operand; unused rows are zero. Each of 4 warps
// takes 16 of every 64 positions. A warp has its own softmax state, accumulators, and ring of K and
// V tiles (K0 V0 K1 V1 ..., filled by cp.async). The warps do not wait for each other between the
// load of Q and the end, where their results are merged in order. If the sequence has several
// splits, the item stores a partial result, and MergeSplits merges all splits in order. A position
// alone decides its warp and split, so a row's bits depend on its sequence alone.
//
// Bytes in flight. To reach 4.3 TB/s at about 0.8 us of latency under load, 3.4 MB must be in
// flight, or 26 KB per SM. A ring of r tiles has r - 1 tiles in flight per warp. r is the largest
// number, up to 8, for which all CTAs of an SM fit into its 228 KB of shared memory. While one CTA
// of an SM starts or ends an item, the others keep copying. On an H200:
//   head_dim                   64   80   96   112  128  256
//   CTAs per SM                3    3    3    3    3    2
//   r, 16-bit cache            8    6    5    4    4    3
//   KB in flight per SM        168  150  144  126  144  128
//   r, e4m3 cache              8    8    8    8    7    6
//   KB in flight per SM        84   105  126  147  144  160
// On devices that allow a CTA only 99 KB (compute capability 8.6, 8.9, 12.x), head_dim 256 has
// another version, with rings of 2 tiles of a 16-bit cache or 5 tiles of e4m3.
//
// Bound. Decode is bound by memory bandwidth: each position of a KV head has 2 head_dim
// sizeof(Cache) bytes, which are read once. Two products of 16 rows cost 64 head_dim FLOP per
// position. These are 16 FLOP per byte of bf16, or 32 per byte of e4m3. At full bandwidth they take
// 9 % (bf16) or 18 % (e4m3) of the tensor cores' time. Partial results increase the traffic by a
// fraction of about 4 group / (split_tokens sizeof(Cache)), for `group` query heads per KV head.
//
// Registers per thread. head_dim 128 needs 64 for accumulators and 32 for Q. head_dim 256 would
// need 128 and 64, so its version reads Q from shared memory at each use.
#ifndef QUIRE_KERNELS_CUDA_PAGED_DECODE_CUH_
#define QUIRE_KERNELS_CUDA_PAGED_DECODE_CUH_

#include <type_traits>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/occupancy.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/cuda/paged_decode.h"
#include "kernels/cuda/partial_results.cuh"
#include "kernels/cuda/split_owner.cuh"

namespace quire::gpu {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeThreads = kDecodeWarps * kWarpSize;
// Number of positions in a round. In a round each warp computes one tile.
inline constexpr int kRoundKeys = kDecodeWarps * kTileKeys;

// Layout of a CTA's shared memory, which has at most kMaxSharedBytes.
template <typename Cache, int kHeadDim, int kMaxSharedBytes = kMostSharedBytes>
struct DecodeShape {
  using Tile = KvTile<Cache, kHeadDim>;
  static constexpr bool kQueryInRegisters = kHeadDim <= 128;

  // Registers limit the CTAs per SM: 3 CTAs leave 168 registers per thread, 2 leave 255.
  static constexpr int kCtasPerSm = kHeadDim <= 128 ? 3 : 2;

  // Row stride of a warp's accumulators in the merge, in floats: 8 more than a multiple of 16, so
  // that four consecutive rows begin in four different groups of 8 banks.
  static constexpr int kMergeStride = kHeadDim + 8;
  static constexpr int kMergeBytes = kDecodeWarps * kTileRows * kMergeStride * 4;
  static constexpr int kStateBytes = kDecodeWarps * kTileRows * 2 * 4;
  static constexpr int kFactorBytes = kTileRows * 4;
  static constexpr int kFixedBytes = QueryTile<kHeadDim>::kBytes + kStateBytes + kFactorBytes;

  // An SM has 228 KB of shared memory, and each CTA takes 1 KB more than its kernel asks for. A
  // ring has at most 8 tiles, because more tiles hide no more latency.
  static constexpr int kShareOfSm = (228 / kCtasPerSm - 1) * 1024;
  static constexpr int kBytesToUse = kShareOfSm < kMaxSharedBytes ? kShareOfSm : kMaxSharedBytes;
  static constexpr int kTilesThatFit = (kBytesToUse - kFixedBytes) / (kDecodeWarps * Tile::kBytes);
  static constexpr int kRingTiles = kTilesThatFit < 8 ? kTilesThatFit : 8;
  static constexpr int kWarpRingBytes = kRingTiles * Tile::kBytes;

  // The merge reuses the rings' memory. Offsets in bytes.
  static constexpr int kQueryOffset = kDecodeWarps * kWarpRingBytes;
  static constexpr int kStateOffset = kQueryOffset + QueryTile<kHeadDim>::kBytes;
  static constexpr int kFactorOffset = kStateOffset + kStateBytes;
  static constexpr int kSharedBytes = kFactorOffset + kFactorBytes;
  static_assert(kRingTiles >= 2);
  static_assert(kSharedBytes <= kMaxSharedBytes);
  static_assert(kMergeBytes <= kQueryOffset);
};

// ---- Items --------------------------------------------------------------------------------------

struct DecodeItem {
  int32_t sequence = 0;  // row of seq_lens and block_tables
  int32_t token = 0;     // row of q and out
  int32_t position = 0;  // the query's position
  int32_t begin = 0;     // the item covers positions [begin, end)
  int32_t end = 0;
  int32_t kv_head = 0;
  // The item computes query heads [first_head, first_head + num_rows).
  int32_t first_head = 0;
  int32_t num_rows = 0;  // 1 .. 16
  int32_t split = 0;     // index among the batch's splits, and row of the partial results
  bool whole = false;    // whether `split` is the sequence's only split
};

QUIRE_DEVICE DecodeItem FindItem(const DecodeParams& params, int32_t index) {
  const DecodePlan& decode = params.plan;
  const PagedAttentionParams& args = params.attention;
  int32_t items_per_split = args.cache.layout.num_kv_heads * params.num_row_groups;
  int32_t in_split = index % items_per_split;
  int32_t row_group = in_split % params.num_row_groups;

  DecodeItem item;
  item.split = index / items_per_split;
  int32_t i = FindSplitOwner(decode.split_start, decode.num_decodes, item.split);
  int32_t first_split = decode.split_start[i];
  item.whole = decode.split_start[i + 1] - first_split == 1;
  item.sequence = decode.seq_index != nullptr ? decode.seq_index[i] : i;
  item.token = args.query_start[item.sequence];

  int32_t seq_len = args.seq_lens[item.sequence];
  int32_t window_begin = FirstKey(seq_len - 1, args.sliding_window);
  int32_t split_begin =
      (window_begin / decode.split_tokens + item.split - first_split) * decode.split_tokens;
  int32_t split_end = split_begin + decode.split_tokens;
  item.position = seq_len - 1;
  item.begin = split_begin > window_begin ? split_begin : window_begin;
  item.end = split_end < seq_len ? split_end : seq_len;

  item.kv_head = in_split / params.num_row_groups;
  int32_t group = params.num_queries_per_kv_head;
  int32_t rows_left = group - row_group * kTileRows;
  item.first_head = item.kv_head * group + row_group * kTileRows;
  item.num_rows = rows_left < kTileRows ? rows_left : kTileRows;
  return item;
}

// ---- One warp's part of an item -----------------------------------------------------------------

// The K and V tiles of one warp, copied ahead of use. The 4 warps of an item take its tiles of 16
// positions in turn. So the i-th tile of this warp begins at position first + 64 i, where `first`
// is the constructor's argument.
template <typename Cache, int kHeadDim, int kTiles>
class KvRing {
 public:
  QUIRE_DEVICE KvRing(const PagedKv& kv, uint8_t* memory, int begin, int end, int first)
      : kv_(kv), memory_(memory), begin_(begin), end_(end), position_(first) {
    FindLaneBlock();
    QUIRE_UNROLL
    for (int i = 0; i < kTiles - 1; ++i) {
      i % 2 == 0 ? CopyKeys() : CopyValues();
    }
  }

  // NextKeys and NextValues return the next tile of K or V, valid until the next call of either.
  // Each call also starts the copy of a later tile into the memory of the tile that the previous
  // call returned. REQUIRES: the calls alternate, NextKeys first.
  QUIRE_DEVICE const uint8_t* NextKeys() {
    Arrive();
    (kTiles - 1) % 2 == 0 ? CopyKeys() : CopyValues();
    return Take();
  }
  QUIRE_DEVICE const uint8_t* NextValues() {
    Arrive();
    kTiles % 2 == 0 ? CopyKeys() : CopyValues();
    return Take();
  }

 private:
  // Waits until the next tile has landed and all lanes are done with the previous one.
  QUIRE_DEVICE void Arrive() {
    WaitCopies<kTiles - 2>();
    __syncwarp();
  }

  QUIRE_DEVICE const uint8_t* Take() {
    const uint8_t* tile = memory_ + used_slot_ * KvTile<Cache, kHeadDim>::kBytes;
    used_slot_ = used_slot_ + 1 < kTiles ? used_slot_ + 1 : 0;
    return tile;
  }

  QUIRE_DEVICE void CopyKeys() {
    if (position_ < end_) {
      Copy(kv_.keys);
    }
    AdvanceCopies();
  }

  QUIRE_DEVICE void CopyValues() {
    if (position_ < end_) {
      Copy(kv_.values);
      position_ += kRoundKeys;
      tile_in_group_ = (tile_in_group_ + 1) % kGroupTiles;
      if (tile_in_group_ == 0) {
        FindLaneBlock();
      }
    }
    AdvanceCopies();
  }

  QUIRE_DEVICE void Copy(const uint8_t* plane) {
    TileBlocks blocks;
    blocks.low = __shfl_sync(kWholeWarp, lane_block_, 2 * tile_in_group_);
    blocks.high = __shfl_sync(kWholeWarp, lane_block_, 2 * tile_in_group_ + 1);
    CopyTile<Cache, kHeadDim>(memory_ + filled_slot_ * KvTile<Cache, kHeadDim>::kBytes,
                              kv_,
                              plane,
                              blocks,
                              position_,
                              begin_,
                              end_);
  }

  QUIRE_DEVICE void AdvanceCopies() {
    CommitCopies();
    filled_slot_ = filled_slot_ + 1 < kTiles ? filled_slot_ + 1 : 0;
  }

  // Reads the block table for the warp's next 16 tiles, the first at position_. Lane l gets the
  // block of one half of a tile (8 positions): tile l / 2, half l % 2.
  QUIRE_DEVICE void FindLaneBlock() {
    int lane = static_cast<int>(threadIdx.x % kWarpSize);
    lane_block_ = FindBlock(kv_, position_ + lane / 2 * kRoundKeys + lane % 2 * 8, begin_, end_);
  }

  static constexpr int kGroupTiles = kWarpSize / 2;

  const PagedKv& kv_;
  uint8_t* memory_;
  int begin_;
  int end_;
  int position_;  // first position of the next tile to copy
  int tile_in_group_ = 0;
  BlockId lane_block_ = kNullBlockId;
  int filled_slot_ = 0;
  int used_slot_ = 0;
};

// One warp's result, not yet divided by the rows' sums of weights. A lane holds parts of two rows,
// lane / 4 and lane / 4 + 8.
template <int kHeadDim>
struct WarpResult {
  float out[kHeadDim / 8][4] = {};
  SoftmaxState states[2];  // of the two rows; each sum has this lane's weights alone
};

// Adds to `result` the attention over the warp's tiles of positions [begin, end). first: the first
// position of the warp's first tile, as in KvRing.
template <typename T, typename Cache, int kHeadDim, int kTiles, typename Query>
QUIRE_DEVICE void AttendTiles(WarpResult<kHeadDim>& result,
                              KvRing<Cache, kHeadDim, kTiles>& ring,
                              const Query& query,
                              bool has_alibi,
                              const ScoreRow (&rows)[2],
                              int first,
                              int begin,
                              int end) {
  for (int position = first; position < end; position += kRoundKeys) {
    float scores[kTileKeys / 8][4] = {};
    AddScores<T, Cache, kHeadDim, kTileKeys>(scores, query, ring.NextKeys());
    ScaleScores(scores, has_alibi, rows, position);
    if (position < begin || position + kTileKeys > end) {
      MaskScores(scores, rows, position);
    }

    const float factors[2] = {UpdateSoftmax(result.states[0], scores, 0),
                              UpdateSoftmax(result.states[1], scores, 1)};
    RescaleAccumulators(result.out, factors);
    uint32_t weights[kTileKeys / 16][4];
    PackWeights<MmaElement<T, Cache>, kTileKeys>(weights, scores);
    AddValues<T, Cache, kHeadDim, kTileKeys>(result.out, weights, ring.NextValues());
  }
  WaitCopies<0>();
}

// ---- The end of an item -------------------------------------------------------------------------

// Writes the warp's result to shared memory. merge: [4 warps][16 rows][kMergeStride] floats.
// states: [4 warps][16 rows][2] floats, a row's maximum and sum.
template <typename Cache, int kHeadDim>
QUIRE_DEVICE void StoreWarpResult(float* merge,
                                  float* states,
                                  const WarpResult<kHeadDim>& result,
                                  int num_rows) {
  int warp = static_cast<int>(threadIdx.x / kWarpSize);
  int group = static_cast<int>(threadIdx.x % kWarpSize / 4);
  int quad = static_cast<int>(threadIdx.x % 4);
  QUIRE_UNROLL
  for (int half = 0; half < 2; ++half) {
    float sum = RowSum(result.states[half].sum);
    int row = group + 8 * half;
    if (row >= num_rows) {
      continue;
    }
    int merge_row = warp * kTileRows + row;
    float* out = merge + merge_row * DecodeShape<Cache, kHeadDim>::kMergeStride;
    QUIRE_UNROLL
    for (int n = 0; n < kHeadDim / 8; ++n) {
      out[AccumulatorDim<Cache>(n, 0, quad)] = result.out[n][2 * half];
      out[AccumulatorDim<Cache>(n, 1, quad)] = result.out[n][2 * half + 1];
    }
    if (quad == 0) {
      states[2 * merge_row] = result.states[half].max;
      states[2 * merge_row + 1] = sum;
    }
  }
}

// Merges the four warps' results. Writes the item's rows to the output or, if the sequence has
// several splits, to the partial results.
template <typename T, typename Cache, int kHeadDim>
QUIRE_DEVICE void StoreItem(const DecodeParams& params,
                            const DecodeItem& item,
                            const float* merge,
                            const float* states) {
  constexpr int kVectors = kHeadDim / 4;
  constexpr int kStride = DecodeShape<Cache, kHeadDim>::kMergeStride;
  const PagedAttentionParams& args = params.attention;
  const DecodePlan& decode = params.plan;
  for (int i = static_cast<int>(threadIdx.x); i < item.num_rows * kVectors; i += kDecodeThreads) {
    int row = i / kVectors;
    int dim = i % kVectors * 4;
    float out[4] = {};
    const PartialResults warps = {.out = merge + row * kStride + dim,
                                  .out_stride = kTileRows * kStride,
                                  .state = states + 2 * row,
                                  .state_stride = 2 * kTileRows};
    SoftmaxState state = MergeResults(out, warps, kDecodeWarps);
    int64_t head = item.first_head + row;
    if (item.whole) {
      int64_t out_row = int64_t{item.token} * args.num_heads + head;
      StoreOutput(
          static_cast<T*>(args.out) + out_row * kHeadDim + dim, out, state.sum, args.v_scale);
    } else {
      int64_t partial_row = int64_t{item.split} * args.num_heads + head;
      StoreVector<float, 4>(decode.partial_out + partial_row * kHeadDim + dim, out);
      if (dim == 0) {
        decode.partial_state[2 * partial_row] = state.max;
        decode.partial_state[2 * partial_row + 1] = state.sum;
      }
    }
  }
}

// ---- Kernels ------------------------------------------------------------------------------------

// Writes an item's rows of Q to `tile` [16, head_dim], and one factor for each row to `factors`
// [16]. Both are in shared memory. A row's scores must be multiplied by its factor.
template <typename T, typename Cache, int kHeadDim>
QUIRE_DEVICE void StoreQueries(uint8_t* tile,
                               float* factors,
                               const PagedAttentionParams& args,
                               const DecodeItem& item) {
  const T* q = static_cast<const T*>(args.q) + item.token * args.q_row_stride +
               int64_t{item.first_head} * kHeadDim;
  for (int row = static_cast<int>(threadIdx.x / kWarpSize); row < kTileRows; row += kDecodeWarps) {
    const T* q_row = row < item.num_rows ? q + row * kHeadDim : nullptr;
    float factor =
        StoreQueryRow<T, Cache, kHeadDim>(tile + row * QueryTile<kHeadDim>::kRowStride, q_row);
    if (threadIdx.x % kWarpSize == 0) {
      factors[row] = factor;
    }
  }
}

// Launched with any number of CTAs. Each CTA has kDecodeThreads threads and
// DecodeShape::kSharedBytes of shared memory. Results have the same bits for every kMaxSharedBytes.
template <typename T, typename Cache, int kHeadDim, int kMaxSharedBytes>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kDecodeThreads, (DecodeShape<Cache, kHeadDim>::kCtasPerSm))
    DecodeItems(DecodeParams params) {
  using Shape = DecodeShape<Cache, kHeadDim, kMaxSharedBytes>;
  QUIRE_SHARED_MEMORY(shared);
  uint8_t* query_tile = shared + Shape::kQueryOffset;
  auto* factors = reinterpret_cast<float*>(shared + Shape::kFactorOffset);
  auto* merge = reinterpret_cast<float*>(shared);
  auto* states = reinterpret_cast<float*>(shared + Shape::kStateOffset);
  int warp = static_cast<int>(threadIdx.x / kWarpSize);
  int group = static_cast<int>(threadIdx.x % kWarpSize / 4);

  const DecodePlan& decode = params.plan;
  const PagedAttentionParams& args = params.attention;
  int32_t num_items = decode.split_start[decode.num_decodes] * args.cache.layout.num_kv_heads *
                      params.num_row_groups;
  for (int32_t index = static_cast<int32_t>(blockIdx.x); index < num_items;
       index += static_cast<int32_t>(gridDim.x)) {
    // ---- Start the copies of K and V, then fetch Q [num_rows, head_dim] -----------------------
    const DecodeItem item = FindItem(params, index);
    const PagedKv kv = MakePagedKv<Cache>(args, item.sequence, item.kv_head, params.block_shift);
    int first = item.begin / kRoundKeys * kRoundKeys + warp * kTileKeys;
    if (first + kTileKeys <= item.begin) {
      first += kRoundKeys;
    }
    KvRing<Cache, kHeadDim, Shape::kRingTiles> ring(
        kv, shared + warp * Shape::kWarpRingBytes, item.begin, item.end, first);
    StoreQueries<T, Cache, kHeadDim>(query_tile, factors, args, item);
    __syncthreads();

    // ---- Each warp's tiles: S [16, 16] = Q K^T, O [16, head_dim] += P V -----------------------
    QueryFragments<kHeadDim, Shape::kQueryInRegisters> query;
    query.Load(query_tile);
    ScoreRow rows[2];
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      int row = group + 8 * half;
      int32_t head = item.first_head + (row < item.num_rows ? row : 0);
      float factor = std::is_same_v<T, MmaElement<T, Cache>> ? 1.0F : factors[row];
      rows[half] = MakeScoreRow(args, head, item.position, factor);
    }
    WarpResult<kHeadDim> result;
    AttendTiles<T>(
        result, ring, query, args.alibi_slopes != nullptr, rows, first, item.begin, item.end);

    // ---- Merge the warps' O and write the item ------------------------------------------------
    __syncthreads();
    StoreWarpResult<Cache>(merge, states, result, item.num_rows);
    __syncthreads();
    StoreItem<T, Cache, kHeadDim>(params, item, merge, states);
    __syncthreads();
  }
}

// Calls body with the template arguments T, Cache and the device's kMaxSharedBytes.
template <int kHeadDim, typename Body>
int DispatchDecode(DType dtype, DType cache_dtype, Body&& body) {
  return DispatchCacheElement(dtype, cache_dtype, [&]<typename T, typename Cache>() {
    return DispatchSharedBytes<DecodeShape<Cache, kHeadDim>::kSharedBytes>(
        [&]<int kMaxSharedBytes>() {
          return body.template operator()<T, Cache, kMaxSharedBytes>();
        });
  });
}

template <int kHeadDim>
int CountDecodeCtas(DType activations, DType cache_dtype, int32_t* num_ctas) {
  return DispatchDecode<kHeadDim>(
      activations, cache_dtype, [&]<typename T, typename Cache, int kMaxSharedBytes>() {
        return CountResidentCtas(DecodeItems<T, Cache, kHeadDim, kMaxSharedBytes>,
                                 kDecodeThreads,
                                 DecodeShape<Cache, kHeadDim, kMaxSharedBytes>::kSharedBytes,
                                 num_ctas);
      });
}

template <int kHeadDim>
int RunDecode(const DecodeParams& params, Stream stream) {
  const PagedAttentionParams& args = params.attention;
  return DispatchDecode<kHeadDim>(
      params.activations,
      args.cache.layout.dtype,
      [&]<typename T, typename Cache, int kMaxSharedBytes>() {
        return QUIRE_LAUNCH((DecodeItems<T, Cache, kHeadDim, kMaxSharedBytes>),
                            dim3(static_cast<uint32_t>(params.plan.num_ctas)),
                            dim3(kDecodeThreads),
                            (DecodeShape<Cache, kHeadDim, kMaxSharedBytes>::kSharedBytes),
                            stream,
                            params);
      });
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PAGED_DECODE_CUH_
