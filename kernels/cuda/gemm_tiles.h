// GemmTiles computes a product whose number of rows an algorithm does not take, in tiles of a
// number of rows that it does: so the algorithm stays the same, and with it the bits of every row.
//
// Thread safety: one caller at a time, on one stream.
#ifndef QUIRE_KERNELS_CUDA_GEMM_TILES_H_
#define QUIRE_KERNELS_CUDA_GEMM_TILES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/gemm.h"

namespace quire::gpu {

// Also the middling number of rows for which an algorithm of all numbers is chosen.
inline constexpr int64_t kMostTileRows = 256;

// The smallest of 8, 16, ... 256 that holds all rows and is taken, 256 for more rows. 0: none is.
int64_t TileRows(int64_t rows, const std::function<bool(int64_t)>& is_taken);

class GemmTiles {
 public:
  GemmTiles() = default;
  ~GemmTiles();
  GemmTiles(const GemmTiles&) = delete;
  GemmTiles& operator=(const GemmTiles&) = delete;

  // Calls multiply for products of tile_rows rows. Rows that do not fill a tile are copied to
  // memory of its own, where rows that mean nothing follow them, and their results back.
  int Run(const GemmArgs& args,
          int64_t tile_rows,
          Stream stream,
          const std::function<int(const GemmArgs&)>& multiply);

 private:
  int RunPadded(const GemmArgs& args,
                int64_t tile_rows,
                Stream stream,
                const std::function<int(const GemmArgs&)>& multiply);
  // Memory that was given out stays where it is: a graph may hold its address.
  int Reserve(int64_t bytes);

  std::vector<void*> memory_;  // the last is the largest
  int64_t capacity_bytes_ = 0;
};

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GEMM_TILES_H_
