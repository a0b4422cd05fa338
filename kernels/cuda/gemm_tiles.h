// GemmTiles computes a product whose row count an algorithm does not support. It cuts the product
// into tiles of a row count that the algorithm supports. So one algorithm computes every row count,
// and the bits of a row stay the same.
//
// Thread safety: one caller at a time, on one stream.
#ifndef QUIRE_KERNELS_CUDA_GEMM_TILES_H_
#define QUIRE_KERNELS_CUDA_GEMM_TILES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/gemm.h"

namespace quire::gpu {

// Rows of the largest tile. Batch-invariant products choose an algorithm for this medium row count,
// and use it for all row counts.
inline constexpr int64_t kMostTileRows = 256;

// Returns the smallest power of two from 8 to 256 that is >= rows and for which is_taken returns
// true, or 0 if there is none. is_taken: whether the algorithm supports the row count. If rows is
// greater than 256, only 256 is tried.
int64_t TileRows(int64_t rows, const std::function<bool(int64_t)>& is_taken);

class GemmTiles {
 public:
  GemmTiles() = default;
  ~GemmTiles();
  GemmTiles(const GemmTiles&) = delete;
  GemmTiles& operator=(const GemmTiles&) = delete;

  // Calls multiply for products of tile_rows rows. A partial tile at the end is copied to scratch
  // memory and padded with undefined rows, and its results are copied back.
  int Run(const GemmArgs& args,
          int64_t tile_rows,
          Stream stream,
          const std::function<int(const GemmArgs&)>& multiply);

 private:
  int RunPadded(const GemmArgs& args,
                int64_t tile_rows,
                Stream stream,
                const std::function<int(const GemmArgs&)>& multiply);
  // Makes scratch memory of at least `bytes`. Does not free smaller scratch memory, since a graph
  // may hold its address.
  int Reserve(int64_t bytes);

  std::vector<void*> memory_;  // the last element is the largest
  int64_t capacity_bytes_ = 0;
};

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GEMM_TILES_H_
