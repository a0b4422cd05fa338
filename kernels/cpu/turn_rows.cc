#include "kernels/cpu/turn_rows.h"

#include <algorithm>
#include <cstring>

namespace quire {
namespace {

constexpr int64_t kLineBytes = 64;
// Units (elements of the transpose) in a run. Each row is cut into runs: the first runs of all rows
// are copied, then the second runs of all rows, and so on. Runs are long enough for the hardware
// prefetcher. They are short enough that the destination lines stay in the cache until the runs of
// all rows are copied.
constexpr int64_t kRun = 64;

// A tile has this number of rows, and this number of units in each row. So each row and each column
// of a tile has the size of a cache line.
template <typename Unit>
constexpr int64_t kTile = kLineBytes / int64_t{sizeof(Unit)};

template <typename Unit>
void TurnPart(const RowsToTurn& rows, int64_t depth, Unit* to, int64_t stride) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const std::byte* from = rows.first + row * rows.stride_bytes;
    for (int64_t k = 0; k < depth; ++k) {
      std::memcpy(to + k * stride + row, from + k * int64_t{sizeof(Unit)}, sizeof(Unit));
    }
  }
}

// A 16-byte vector type that gcc and clang offer on every machine.
using Quad = uint32_t __attribute__((vector_size(16)));

Quad LoadQuad(const std::byte* from) {
  Quad quad;
  std::memcpy(&quad, from, sizeof(quad));
  return quad;
}

// Transposes four rows of four 32-bit units.
void TurnQuads(const std::byte* from, int64_t stride_bytes, uint32_t* to, int64_t stride) {
  const Quad a = LoadQuad(from);
  const Quad b = LoadQuad(from + stride_bytes);
  const Quad c = LoadQuad(from + 2 * stride_bytes);
  const Quad d = LoadQuad(from + 3 * stride_bytes);
  const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Quad ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Quad cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Quad turned[] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                         __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                         __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                         __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  for (int64_t i = 0; i < 4; ++i) {
    std::memcpy(to + i * stride, &turned[i], sizeof(Quad));
  }
}

void TurnTile(const RowsToTurn& rows, uint32_t* to, int64_t stride) {
  constexpr int64_t kUnitBytes = sizeof(uint32_t);
  for (int64_t row = 0; row < kTile<uint32_t>; row += 4) {
    for (int64_t k = 0; k < kTile<uint32_t>; k += 4) {
      TurnQuads(rows.first + row * rows.stride_bytes + k * kUnitBytes,
                rows.stride_bytes,
                to + k * stride + row,
                stride);
    }
  }
}

// Transposes the rows tile after tile along k. The last tile may be narrower.
template <typename Unit>
void TurnRun(const RowsToTurn& rows, int64_t depth, Unit* to, int64_t stride) {
  for (int64_t k = 0; k < depth; k += kTile<Unit>) {
    const RowsToTurn tile = {.first = rows.first + k * int64_t{sizeof(Unit)},
                             .stride_bytes = rows.stride_bytes,
                             .count = rows.count};
    const int64_t tile_depth = std::min(kTile<Unit>, depth - k);
    if constexpr (sizeof(Unit) == sizeof(uint32_t)) {
      if (tile.count == kTile<Unit> && tile_depth == kTile<Unit>) {
        TurnTile(tile, to + k * stride, stride);
        continue;
      }
    }
    TurnPart(tile, tile_depth, to + k * stride, stride);
  }
}

// Prefetches lines that will be written. The processor does not prefetch them, because it does not
// predict the stride from write to write.
void FetchForWriting(const void* begin, int64_t bytes) {
  const auto* const first = static_cast<const std::byte*>(begin);
  for (int64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(first + at, 1);
  }
}

template <typename Unit>
void Turn(const RowsToTurn& rows, int64_t depth, Unit* to, int64_t stride) {
  for (int64_t k = 0; k < depth; k += kRun) {
    if (const int64_t next = k + kRun; next < depth) {
      FetchForWriting(to + next * stride,
                      std::min(kRun, depth - next) * stride * int64_t{sizeof(Unit)});
    }
    for (int64_t row = 0; row < rows.count; row += kTile<Unit>) {
      TurnRun(RowsToTurn{.first = rows.first + row * rows.stride_bytes + k * int64_t{sizeof(Unit)},
                         .stride_bytes = rows.stride_bytes,
                         .count = std::min(kTile<Unit>, rows.count - row)},
              std::min(kRun, depth - k),
              to + k * stride + row,
              stride);
    }
  }
}

}  // namespace

void TransposeRows(const RowsToTurn& rows, int64_t depth, uint32_t* to, int64_t stride) {
  Turn(rows, depth, to, stride);
}

void TransposeRows(const RowsToTurn& rows, int64_t depth, uint16_t* to, int64_t stride) {
  Turn(rows, depth, to, stride);
}

}  // namespace quire
