// The inner loops of linear_amx.cc. A loop computes four tiles of sums at a time: from two tiles
// of rows of x and two tiles of columns of the weights, or from one tile of rows and four of
// columns.
//
// Thread safety: tiles belong to the thread that has configured them.
#ifndef QUIRE_KERNELS_CPU_AMX_PRODUCTS_H_
#define QUIRE_KERNELS_CPU_AMX_PRODUCTS_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/amx_finish.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/storage_types.h"

namespace quire {
namespace {

// A panel of packed weights (packed_linear.h) has the columns of one tile. A strip consists of
// kStripTiles panels that are computed together.
inline constexpr int64_t kStripTiles = 4;
inline constexpr int64_t kStripColumns = kStripTiles * AmxTile::kColumns;
inline constexpr int64_t kTileBytes = AmxTile::kDepth * AmxTile::kColumns * sizeof(BFloat16);

// A range of k (the input dimension), counted in tiles of 32 values.
struct DepthRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Prefetches weights of a strip: from each of its panels, the part that belongs to one range of k.
struct Ahead {
  const std::byte* at = nullptr;  // next line to prefetch
  int64_t lines = 0;              // cache lines that a call of Fetch prefetches
  int64_t part_lines = 0;         // cache lines of one panel's part
  int64_t panel_bytes = 0;
  int64_t left = 0;  // lines of the present panel's part that are not prefetched yet

  void Fetch() {
    for (int64_t line = 0; line < lines; ++line, at += AmxTile::kRowBytes) {
      if (left == 0) {
        at += panel_bytes - part_lines * AmxTile::kRowBytes;
        left = part_lines;
      }
      __builtin_prefetch(at, 0, 2);  // into the second-level cache
      --left;
    }
  }
};

// Prefetches the rows of y to which sums will be written. Else the writes would wait for cache
// lines. A call of Fetch prefetches rows_per_step rows.
struct Outputs {
  const float* at = nullptr;  // next row to prefetch
  int64_t row_floats = 0;     // floats from row to row
  int64_t lines = 0;          // cache lines of a row
  int64_t rows = 0;           // rows still to prefetch
  int64_t rows_per_step = 0;

  void Fetch() {
    for (int64_t i = 0; i < rows_per_step && rows > 0; ++i, --rows, at += row_floats) {
      for (int64_t line = 0; line < lines; ++line) {
        __builtin_prefetch(at + line * AmxTile::kColumns, 1, 3);
      }
    }
  }
};

// Four tiles of sums that are computed together. x and w point to the first operands (k = 0) of the
// tiles.
struct Unit {
  const BFloat16* x[2];
  const std::byte* w[kStripTiles];
  int64_t x_step;  // elements of x from one tile of k to the next
  int64_t depth;
  // Memory for sums, in slots of kUnitFloats: the first slot is for an unfinished segment of k, the
  // next ones are for finished segments that are not merged yet.
  float* rest;
  int64_t row;
  int64_t column;
};

inline void LoadSums(const float* rest) {
  _tile_loadd(0, rest, AmxTile::kRowBytes);
  _tile_loadd(1, rest + AmxTile::kFloats, AmxTile::kRowBytes);
  _tile_loadd(2, rest + 2 * AmxTile::kFloats, AmxTile::kRowBytes);
  _tile_loadd(3, rest + 3 * AmxTile::kFloats, AmxTile::kRowBytes);
}

inline void ZeroSums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void StoreSums(float* rest) {
  _tile_stored(0, rest, AmxTile::kRowBytes);
  _tile_stored(1, rest + AmxTile::kFloats, AmxTile::kRowBytes);
  _tile_stored(2, rest + 2 * AmxTile::kFloats, AmxTile::kRowBytes);
  _tile_stored(3, rest + 3 * AmxTile::kFloats, AmxTile::kRowBytes);
}

// Multiplies two tiles of rows by two tiles of columns. Tile registers 0 and 1 get the sums of the
// first tile of rows, 2 and 3 the sums of the second. Each step also does a part of `earlier`, the
// deferred work on earlier sums.
inline void Multiply2x2(
    const Unit& unit, DepthRange k, Ahead& ahead, Outputs outputs, Finish& earlier) {
  const BFloat16* x0 = unit.x[0] + k.begin * unit.x_step;
  const BFloat16* x1 = unit.x[1] + k.begin * unit.x_step;
  const std::byte* w0 = unit.w[0] + k.begin * kTileBytes;
  const std::byte* w1 = unit.w[1] + k.begin * kTileBytes;
  for (int64_t step = k.begin; step < k.end; ++step) {
    ahead.Fetch();
    outputs.Fetch();
    earlier.Step();
    KeepVectorUnitAwake();
    _tile_loadd(6, w0, AmxTile::kRowBytes);
    _tile_loadd(4, x0, AmxTile::kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1, AmxTile::kRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x1, AmxTile::kRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    x0 += unit.x_step;
    x1 += unit.x_step;
    w0 += kTileBytes;
    w1 += kTileBytes;
  }
}

// Prefetches the weights of step `step` + 2 into the first-level cache. Replaces Ahead, which
// prefetches into the second-level cache, if x has a single tile of rows: then no later tile reads
// the same weights.
inline void FetchNear(const Unit& unit, int64_t step) {
  constexpr int64_t kLead = 2;
  // Past the end of a panel, continues with the panel that lies kStripTiles panels later, in the
  // next strip.
  const int64_t later =
      step + kLead < unit.depth ? step + kLead : step + kLead + (kStripTiles - 1) * unit.depth;
  for (int64_t t = 0; t < kStripTiles; ++t) {
    const std::byte* at = unit.w[t] + later * kTileBytes;
    for (int64_t line = 0; line < kTileBytes; line += AmxTile::kRowBytes) {
      __builtin_prefetch(at + line, 0, 3);
    }
  }
}

template <bool kIsNear>
void Multiply1x4(const Unit& unit, DepthRange k, Ahead& ahead, Outputs outputs, Finish& earlier) {
  const BFloat16* x = unit.x[0] + k.begin * unit.x_step;
  int64_t at = k.begin * kTileBytes;
  for (int64_t step = k.begin; step < k.end; ++step) {
    if constexpr (kIsNear) {
      FetchNear(unit, step);
    } else {
      ahead.Fetch();
    }
    outputs.Fetch();
    earlier.Step();
    KeepVectorUnitAwake();
    _tile_loadd(4, x, AmxTile::kRowBytes);
    _tile_loadd(6, unit.w[0] + at, AmxTile::kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, unit.w[1] + at, AmxTile::kRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, unit.w[2] + at, AmxTile::kRowBytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, unit.w[3] + at, AmxTile::kRowBytes);
    _tile_dpbf16ps(3, 4, 7);
    x += unit.x_step;
    at += kTileBytes;
  }
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_AMX_PRODUCTS_H_
