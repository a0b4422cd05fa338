// Tiles of attention on tensor cores, shared by decode and prefill: a warp computes S = Q K^T and
// O += P V for 16 query rows and multiples of 16 keys, with mma m16n8k16 and fp32 accumulators.
//
// Fragments. Lane l of a warp has group = l / 4 (0..7) and quad = l % 4 (0..3). A 32-bit register
// of A or B holds two 16-bit elements, the lower k in the lower half.
//   A [16 x 16]:  a[0] = row `group`,     k = 2 `quad`, 2 `quad` + 1
//                 a[1] = row `group` + 8, k = 2 `quad`, 2 `quad` + 1
//                 a[2] = row `group`,     k = 2 `quad` + 8, 2 `quad` + 9
//                 a[3] = row `group` + 8, k = 2 `quad` + 8, 2 `quad` + 9
//   B [16 x 8]:   b[0] = column `group`,  k = 2 `quad`, 2 `quad` + 1
//                 b[1] = column `group`,  k = 2 `quad` + 8, 2 `quad` + 9
//   C [16 x 8]:   c[0], c[1] = row `group`,     columns 2 `quad`, 2 `quad` + 1
//                 c[2], c[3] = row `group` + 8, columns 2 `quad`, 2 `quad` + 1
// First product: A is Q, B is K^T, C is S. Second product: A is P (weights), B is V, C is O. Two
// adjacent C tiles, rounded, are an A fragment of P (PackWeights): no data moves between lanes.
//
// Cache of 16-bit T: the mma runs in T. K rows are read by ldmatrix, V rows by ldmatrix.trans.
//
// Cache of e4m3: the mma runs in f16, which represents every e4m3 value exactly. P is rounded to
// f16's 11 significant bits. ldmatrix moves pairs of bytes as if they were 16-bit elements. So a
// register receives 4 consecutive dims of K where b[i] needs 2, and 2 dims of V where b[i] needs 1.
// Instead of moving dims between lanes, both products permute the dims:
//   K: within 16 dims, B holds dims 4 quad + {0, 1} at k = 2 quad + {0, 1}, and dims
//      4 quad + {2, 3} at k = 2 quad + 8 + {0, 1}. The sum over k stays the same because
//      StoreQueryRow permutes Q in the same way.
//   V: within 16 dims, the even dims are the columns of one C tile, and the odd dims are the
//      columns of the next C tile. AccumulatorDim says which dim a register holds.
// Queries of bf16 can exceed f16's range. So each query row is divided by a power of two that
// brings the row's largest magnitude into [1, 2). Then elements down to 2^-14 of the largest are
// exact in f16. MakeScoreRow multiplies the scale of the scores by the same power.
//
// Shared memory. Rows are padded to an odd number of 16-byte units. Then the 8 rows of a matrix,
// which ldmatrix reads at once, lie in different banks.
//
// Rows of masked keys must be zero in shared memory. Masking S alone gives such keys weight 0, but
// 0 times a NaN in a row of V is NaN. CopyTile fills rows outside [begin, end) with zeros and does
// not read them from the cache.
#ifndef QUIRE_KERNELS_CUDA_ATTENTION_TILE_CUH_
#define QUIRE_KERNELS_CUDA_ATTENTION_TILE_CUH_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/tensor_core.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warp.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/online_softmax.cuh"

namespace quire::gpu {

// Number of rows in an A fragment.
inline constexpr int kTileRows = 16;
// Number of keys in the smallest tile.
inline constexpr int kTileKeys = 16;

// The element type of the mma in both products.
template <typename T, typename Cache>
using MmaElement = std::conditional_t<sizeof(Cache) == 1, F16, T>;

// Returns the distance in bytes between rows of `bytes` bytes in shared memory: an odd number of
// 16-byte units. REQUIRES: `bytes` is a multiple of 16.
constexpr int PaddedRowBytes(int bytes) { return bytes / 16 % 2 == 0 ? bytes + 16 : bytes; }

// A tile of K or V in shared memory: token rows of head_dim elements.
template <typename Cache, int kHeadDim>
struct KvTile {
  // Number of 16-byte chunks of a row.
  static constexpr int kRowChunks = kHeadDim * static_cast<int>(sizeof(Cache)) / 16;
  static constexpr int kRowStride = PaddedRowBytes(kRowChunks * 16);  // in bytes
  static constexpr int kBytes = kTileKeys * kRowStride;               // size of a tile of 16 rows
};

// A tile of Q in shared memory: query rows of head_dim 16-bit elements.
template <int kHeadDim>
struct QueryTile {
  static constexpr int kRowStride = PaddedRowBytes(kHeadDim * 2);  // in bytes
  static constexpr int kBytes = kTileRows * kRowStride;            // size of a tile of 16 rows
};

// ---- Global to shared ---------------------------------------------------------------------------

// Addresses of one sequence's K and V in one layer and KV head. The sequence's blocks are in the
// pool, or in a memory window, where they have consecutive addresses (kernels/cuda/windows.h).
// Strides are in bytes.
struct PagedKv {
  // K of slot 0 in the pool's block 0, or in the window's first block.
  const uint8_t* keys = nullptr;
  // V of the same slot.
  const uint8_t* values = nullptr;
  const BlockId* block_table = nullptr;  // null if the blocks are in a window
  int64_t block_stride = 0;
  int32_t block_shift = 0;  // log2 of the block size, which is at least 8
};

template <typename Cache>
QUIRE_DEVICE PagedKv MakePagedKv(const PagedAttentionParams& args,
                                 int32_t sequence,
                                 int32_t kv_head,
                                 int32_t block_shift) {
  constexpr int64_t kSize = sizeof(Cache);
  const KvCacheLayout& layout = args.cache.layout;
  PagedKv kv;
  kv.block_stride = layout.block_stride * kSize;
  const auto* base = static_cast<const uint8_t*>(args.cache.base);
  if (args.first_places == nullptr) {
    kv.block_table = args.block_tables + int64_t{sequence} * args.max_blocks_per_seq;
  } else {
    base = static_cast<const uint8_t*>(args.cache.windows) +
           args.first_places[sequence] * kv.block_stride;
  }
  kv.keys = base + layout.KeyOffset(0, args.layer, kv_head) * kSize;
  kv.values = base + layout.ValueOffset(0, args.layer, kv_head) * kSize;
  kv.block_shift = block_shift;
  return kv;
}

// Returns the number of the block that holds the position: the block's id in the pool or, without a
// block table, its index in the window. kv.keys points into the block with number 0.
QUIRE_DEVICE BlockId BlockOf(const PagedKv& kv, int position) {
  int index = position >> kv.block_shift;
  return kv.block_table != nullptr ? kv.block_table[index] : index;
}

// Returns the number of the block that holds the 8 positions from `position` on. One block holds
// all 8, because `position` and the block size are multiples of 8. If none of the 8 is in [begin,
// end), returns kNullBlockId and does not read the block table.
QUIRE_DEVICE BlockId FindBlock(const PagedKv& kv, int position, int begin, int end) {
  bool needed = position < end && position + 8 > begin;
  return needed ? BlockOf(kv, position) : kNullBlockId;
}

// The blocks of a tile of 16 positions. All lanes hold the same ids.
struct TileBlocks {
  BlockId low = kNullBlockId;   // block of positions 0 .. 7
  BlockId high = kNullBlockId;  // block of positions 8 .. 15
};

// Starts the copy of 16 rows of K or V, from `position` on, to `tile`. One warp calls it. plane:
// kv.keys or kv.values. In `tile`, the chunks of a row are in the order of dims. Rows of positions
// outside [begin, end) become zeros and are not read. Afterwards the caller must call CommitCopies.
template <typename Cache, int kHeadDim>
QUIRE_DEVICE void CopyTile(uint8_t* tile,
                           const PagedKv& kv,
                           const uint8_t* plane,
                           TileBlocks blocks,
                           int position,
                           int begin,
                           int end) {
  using Tile = KvTile<Cache, kHeadDim>;
  constexpr int kChunks = kTileKeys * Tile::kRowChunks;
  int lane = static_cast<int>(threadIdx.x % 32);
  int block_size = 1 << kv.block_shift;
  const uint8_t* low = plane + blocks.low * kv.block_stride;
  const uint8_t* high = plane + blocks.high * kv.block_stride;
  QUIRE_UNROLL
  for (int first = 0; first < kChunks; first += 32) {
    int chunk = first + lane;
    int row = chunk / Tile::kRowChunks;
    int column = chunk % Tile::kRowChunks;
    bool valid = position + row >= begin && position + row < end;
    int slot = (position + row) & (block_size - 1);
    const uint8_t* source =
        (row < 8 ? low : high) + KvChunkOffset(Tile::kRowChunks, block_size, slot, column);
    if (kChunks % 32 == 0 || chunk < kChunks) {
      CopyAsync16(tile + row * Tile::kRowStride + column * 16, source, valid);
    }
  }
}

// For bf16 queries on an e4m3 cache: returns the power of two by which a row is divided to fit f16.
// magnitude: the row's largest magnitude.
QUIRE_DEVICE float QueryFactor(float magnitude) {
  uint32_t exponent = __float_as_uint(magnitude) >> 23;
  exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  return __uint_as_float(exponent << 23);
}

// Holds a row of Q in the registers of a warp, on its way from global to shared memory. Lane l has
// dims 8 l .. 8 l + 7.
template <int kHeadDim>
class QueryRow {
 public:
  QUIRE_DEVICE void Clear() {
    QUIRE_UNROLL
    for (float& value : values_) {
      value = 0.0F;
    }
  }

  // q: [kHeadDim]
  template <typename T>
  QUIRE_DEVICE void Load(const T* q) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane < kVectors) {
      LoadVector<T, 8>(q + 8 * lane, values_);
    }
  }

  // Converts the row to the mma's type and order of dims, and writes it to `row` in shared memory.
  // Returns to all lanes the factor by which the row was divided. The factor is 1 unless T is bf16
  // and the cache is e4m3.
  template <typename T, typename Cache>
  QUIRE_DEVICE float Store(uint8_t* row) {
    using M = MmaElement<T, Cache>;
    const int lane = static_cast<int>(threadIdx.x % 32);
    float factor = 1.0F;
    if constexpr (!std::is_same_v<M, T>) {
      float magnitude = 0.0F;
      QUIRE_UNROLL
      for (float value : values_) {
        magnitude = fmaxf(magnitude, fabsf(value));
      }
      factor = QueryFactor(WarpMax(magnitude));
      float inverse = 1.0F / factor;
      QUIRE_UNROLL
      for (float& value : values_) {
        value *= inverse;
      }
    }

    if (lane < kVectors) {
      uint32_t pairs[4];
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) {
        pairs[i] = Pack2<M>(values_[2 * i], values_[2 * i + 1]);
      }
      if constexpr (sizeof(Cache) == 1) {
        // Stores the dims in K's order (see the file's first comment). For n = 0 to 3, dims
        // 4 n + {0, 1} go to k = 2 n + {0, 1}, and dims 4 n + {2, 3} go to k = 2 n + 8 + {0, 1}.
        uint8_t* low = row + lane / 2 * 32 + lane % 2 * 8;
        StoreWords<8>(low, {pairs[0], pairs[2]});
        StoreWords<8>(low + 16, {pairs[1], pairs[3]});
      } else {
        StoreWords<16>(row + lane * 16, pairs);
      }
    }
    return factor;
  }

 private:
  static constexpr int kVectors = kHeadDim / 8;
  float values_[8];
};

// Loads the row q, or zeros if q is null. Then does the same as QueryRow::Store.
template <typename T, typename Cache, int kHeadDim>
QUIRE_DEVICE float StoreQueryRow(uint8_t* row, const T* q) {
  QueryRow<kHeadDim> values;
  values.Clear();
  if (q != nullptr) {
    values.Load(q);
  }
  return values.template Store<T, Cache>(row);
}

// ---- Shared to fragments ------------------------------------------------------------------------

// Holds 16 query rows as head_dim / 16 fragments of operand A. If kInRegisters, the
// fragments stay in registers. Otherwise each Get reads a fragment from shared memory. This saves
// 64 registers at head_dim 256, where the accumulators alone take 128.
template <int kHeadDim, bool kInRegisters>
class QueryFragments {
 public:
  // rows: a QueryTile<kHeadDim>, complete and visible to the warp.
  QUIRE_DEVICE void Load(const uint8_t* rows) {
    int lane = static_cast<int>(threadIdx.x % 32);
    // ldmatrix loads four matrices. Lanes 8 j .. 8 j + 7 point to the rows of matrix j. 0: rows
    // 0..7, k 0..7; 1: rows 8..15, k 0..7; 2: rows 0..7, k 8..15; 3: rows 8..15, k 8..15.
    lane_row_ = rows + lane % 16 * QueryTile<kHeadDim>::kRowStride + lane / 16 * 16;
    if constexpr (kInRegisters) {
      QUIRE_UNROLL
      for (int k = 0; k < kHeadDim / 16; ++k) {
        LoadMatrixX4(fragments_[k], lane_row_ + k * 32);
      }
    }
  }

  // Sets `a` to the fragment of dims 16 k .. 16 k + 15. REQUIRES: k is a constant after unrolling.
  QUIRE_DEVICE void Get(int k, uint32_t (&a)[4]) const {
    if constexpr (kInRegisters) {
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) {
        a[i] = fragments_[k][i];
      }
    } else {
      LoadMatrixX4(a, lane_row_ + k * 32);
    }
  }

 private:
  const uint8_t* lane_row_ = nullptr;
  uint32_t fragments_[kInRegisters ? kHeadDim / 16 : 1][4];
};

// Converts the two e4m3 bytes in the lower half of a register to two f16.
QUIRE_DEVICE uint32_t LowF8ToF16(uint32_t bytes) {
  return F8x2ToF16x2(static_cast<uint16_t>(bytes));
}
// Converts the two e4m3 bytes in the upper half of a register to two f16.
QUIRE_DEVICE uint32_t HighF8ToF16(uint32_t bytes) {
  return F8x2ToF16x2(static_cast<uint16_t>(bytes >> 16));
}

// scores += Q K^T. scores: C tiles of 16 rows x kKeys keys. Tile n has keys 8 n .. 8 n + 7.
// keys: kKeys rows of KvTile<Cache, kHeadDim>::kRowStride bytes.
template <typename T, typename Cache, int kHeadDim, int kKeys, bool kInRegisters>
QUIRE_DEVICE void AddScores(float (&scores)[kKeys / 8][4],
                            const QueryFragments<kHeadDim, kInRegisters>& query,
                            const uint8_t* keys) {
  using M = MmaElement<T, Cache>;
  using Tile = KvTile<Cache, kHeadDim>;
  int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (sizeof(Cache) == 2) {
    // ldmatrix loads four matrices. 0: keys 0..7, dims 0..7; 1: keys 0..7, dims 8..15; 2: keys
    // 8..15, dims 0..7; 3: keys 8..15, dims 8..15.
    int lane_row = lane / 16 * 8 + lane % 8;
    const uint8_t* lane_keys = keys + lane_row * Tile::kRowStride + lane / 8 % 2 * 16;
    QUIRE_UNROLL
    for (int k = 0; k < kHeadDim / 16; ++k) {
      uint32_t a[4];
      query.Get(k, a);
      QUIRE_UNROLL
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        LoadMatrixX4(b, lane_keys + n * Tile::kBytes + k * 32);
        const uint32_t first[2] = {b[0], b[1]};
        const uint32_t second[2] = {b[2], b[3]};
        Mma16816<M>(scores[2 * n], a, first);
        Mma16816<M>(scores[2 * n + 1], a, second);
      }
    }
  } else {
    // A 16-byte chunk is 16 dims. ldmatrix loads four matrices. 0: keys 0..7, chunk c; 1: keys
    // 8..15, chunk c; 2: keys 0..7, chunk c + 1; 3: keys 8..15, chunk c + 1. If the number of
    // chunks is odd, matrices 2 and 3 of the last load repeat chunk c and are not used.
    int lane_row = lane % 16;
    QUIRE_UNROLL
    for (int c = 0; c < Tile::kRowChunks; c += 2) {
      int lane_chunk = c + 1 < Tile::kRowChunks ? c + lane / 16 : c;
      const uint8_t* lane_keys = keys + lane_row * Tile::kRowStride + lane_chunk * 16;
      uint32_t b[kKeys / 16][4];
      QUIRE_UNROLL
      for (int n = 0; n < kKeys / 16; ++n) {
        LoadMatrixX4(b[n], lane_keys + n * Tile::kBytes);
      }
      QUIRE_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (c + i < Tile::kRowChunks) {
          uint32_t a[4];
          query.Get(c + i, a);
          QUIRE_UNROLL
          for (int n = 0; n < kKeys / 16; ++n) {
            const uint32_t first[2] = {LowF8ToF16(b[n][2 * i]), HighF8ToF16(b[n][2 * i])};
            const uint32_t second[2] = {LowF8ToF16(b[n][2 * i + 1]), HighF8ToF16(b[n][2 * i + 1])};
            Mma16816<M>(scores[2 * n], a, first);
            Mma16816<M>(scores[2 * n + 1], a, second);
          }
        }
      }
    }
  }
}

// out += P V. out: C tiles of 16 rows x head_dim; AccumulatorDim gives the order of dims. weights:
// P, as A fragments from PackWeights. values: kKeys rows of KvTile<Cache, kHeadDim>::kRowStride
// bytes.
template <typename T, typename Cache, int kHeadDim, int kKeys>
QUIRE_DEVICE void AddValues(float (&out)[kHeadDim / 8][4],
                            const uint32_t (&weights)[kKeys / 16][4],
                            const uint8_t* values) {
  using M = MmaElement<T, Cache>;
  using Tile = KvTile<Cache, kHeadDim>;
  int lane = static_cast<int>(threadIdx.x % 32);
  const uint8_t* lane_row = values + lane % 16 * Tile::kRowStride;
  QUIRE_UNROLL
  for (int n = 0; n < kKeys / 16; ++n) {
    if constexpr (sizeof(Cache) == 2) {
      // ldmatrix.trans loads four matrices. 0: keys 0..7, dims 0..7; 1: keys 8..15, dims 0..7; 2:
      // keys 0..7, dims 8..15; 3: keys 8..15, dims 8..15.
      QUIRE_UNROLL
      for (int d = 0; d < kHeadDim / 16; ++d) {
        uint32_t b[4];
        LoadMatrixX4Transposed(b, lane_row + n * Tile::kBytes + d * 32 + lane / 16 * 16);
        const uint32_t first[2] = {b[0], b[1]};
        const uint32_t second[2] = {b[2], b[3]};
        Mma16816<M>(out[2 * d], weights[n], first);
        Mma16816<M>(out[2 * d + 1], weights[n], second);
      }
    } else {
      // The load transposes V in units of two bytes. It loads four matrices: 0 has keys 0..7 and
      // chunk c, 1 has keys 8..15 and chunk c, and 2 and 3 have the same keys and chunk c + 1. With
      // g = lane / 4 and q = lane % 4, a register has four bytes: dims 2 * g and 2 * g + 1 of key
      // 2 * q, then the same dims of key 2 * q + 1. For each dim, BytePermute puts the bytes of
      // both keys side by side.
      QUIRE_UNROLL
      for (int c = 0; c < Tile::kRowChunks; c += 2) {
        int lane_chunk = c + 1 < Tile::kRowChunks ? c + lane / 16 : c;
        uint32_t b[4];
        LoadMatrixX4Transposed(b, lane_row + n * Tile::kBytes + lane_chunk * 16);
        QUIRE_UNROLL
        for (int i = 0; i < 2; ++i) {
          if (c + i < Tile::kRowChunks) {
            uint32_t low = BytePermute(b[2 * i], 0, 0x3120);
            uint32_t high = BytePermute(b[2 * i + 1], 0, 0x3120);
            const uint32_t even[2] = {LowF8ToF16(low), LowF8ToF16(high)};
            const uint32_t odd[2] = {HighF8ToF16(low), HighF8ToF16(high)};
            Mma16816<M>(out[2 * (c + i)], weights[n], even);
            Mma16816<M>(out[2 * (c + i) + 1], weights[n], odd);
          }
        }
      }
    }
  }
}

// Returns the dim of O that register r (0 .. 3) of C tile n holds in lanes with lane % 4 == quad.
template <typename Cache>
QUIRE_DEVICE constexpr int AccumulatorDim(int n, int r, int quad) {
  return sizeof(Cache) == 2 ? n * 8 + 2 * quad + r % 2
                            : n / 2 * 16 + 4 * quad + 2 * (r % 2) + n % 2;
}

// ---- Between the products -----------------------------------------------------------------------

// Returns the first key that a query at this position attends to.
QUIRE_DEVICE int32_t FirstKey(int32_t position, int32_t sliding_window) {
  return sliding_window > 0 && position >= sliding_window ? position - sliding_window + 1 : 0;
}

// Converts the products q . k of one query row to scores in base 2: a key's weight is 2^score.
struct ScoreRow {
  float scale = 1.0F;    // multiplies the product q . k
  float slope = 0.0F;    // slope of ALiBi, in base 2
  int32_t position = 0;  // the query's position
  int32_t begin = 0;     // the query attends to keys [begin, position]
};

// factor: the value that StoreQueryRow returned for the row.
QUIRE_DEVICE ScoreRow MakeScoreRow(const PagedAttentionParams& args,
                                   int32_t head,
                                   int32_t position,
                                   float factor) {
  ScoreRow row;
  row.scale = args.scale * args.k_scale * factor * kLog2E;
  row.slope = args.alibi_slopes != nullptr ? args.alibi_slopes[head] * kLog2E : 0.0F;
  row.position = position;
  row.begin = FirstKey(position, args.sliding_window);
  return row;
}

// Multiplies scores by the rows' scales, then adds the ALiBi bias if has_alibi. scores: C tiles of
// 16 rows x (8 * kTiles) keys, the first key at first_position. The lane holds scores of two rows
// of the tiles: rows[0] is for row lane / 4, rows[1] for row lane / 4 + 8.
template <int kTiles>
QUIRE_DEVICE void ScaleScores(float (&scores)[kTiles][4],
                              bool has_alibi,
                              const ScoreRow (&rows)[2],
                              int32_t first_position) {
  int quad = static_cast<int>(threadIdx.x % 4);
  QUIRE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    QUIRE_UNROLL
    for (int r = 0; r < 4; ++r) {
      scores[n][r] *= rows[r / 2].scale;
    }
  }
  if (has_alibi) {
    QUIRE_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      QUIRE_UNROLL
      for (int r = 0; r < 4; ++r) {
        int32_t key = first_position + n * 8 + 2 * quad + r % 2;
        scores[n][r] += rows[r / 2].slope * static_cast<float>(key - rows[r / 2].position);
      }
    }
  }
}

// Sets scores to -infinity for keys that a row does not attend to. The call may be skipped if both
// rows attend to all keys of the tiles.
template <int kTiles>
QUIRE_DEVICE void MaskScores(float (&scores)[kTiles][4],
                             const ScoreRow (&rows)[2],
                             int32_t first_position) {
  int quad = static_cast<int>(threadIdx.x % 4);
  QUIRE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    QUIRE_UNROLL
    for (int r = 0; r < 4; ++r) {
      int32_t key = first_position + n * 8 + 2 * quad + r % 2;
      if (key < rows[r / 2].begin || key > rows[r / 2].position) {
        scores[n][r] = -INFINITY;
      }
    }
  }
}

// Multiplies row lane / 4 of O by factors[0], and row lane / 4 + 8 by factors[1].
template <int kTiles>
QUIRE_DEVICE void RescaleAccumulators(float (&out)[kTiles][4], const float (&factors)[2]) {
  QUIRE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    QUIRE_UNROLL
    for (int r = 0; r < 4; ++r) {
      out[n][r] *= factors[r / 2];
    }
  }
}

// Converts weights of 16 rows x kKeys keys from C tiles to A fragments of the mma's type M.
template <typename M, int kKeys>
QUIRE_DEVICE void PackWeights(uint32_t (&weights)[kKeys / 16][4],
                              const float (&scores)[kKeys / 8][4]) {
  QUIRE_UNROLL
  for (int n = 0; n < kKeys / 16; ++n) {
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* pair = &scores[2 * n + i / 2][i % 2 * 2];
      weights[n][i] = Pack2<M>(pair[0], pair[1]);
    }
  }
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_ATTENTION_TILE_CUH_
