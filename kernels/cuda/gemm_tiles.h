// GemmTiles cuts a product into tiles with a fixed number of rows. This is needed if the product's
// algorithm supports that number, but not the product's own number of rows. So one algorithm
// computes products of any number of rows, and a row has the same bits in all of them.
//
// Thread safety: one caller at a time, on one stream.
#ifndef QUIRE_KERNELS_CUDA_GEMM_TILES_H_
#define QUIRE_KERNELS_CUDA_GEMM_TILES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/gemm.h"

namespace quire::gpu {

// Rows of the largest tile. A weight's batch-invariant products, whatever their row count, all use
// the algorithm that cuBLASLt suggests for this medium row count.
inline constexpr int64_t kMostTileRows = 256;

// Returns a row count for tiles: the smallest power of two from 8 to 256 that is >= rows and that
// the algorithm supports. If rows > 256, only 256 is tried. Returns 0 if there is no such number.
// is_taken: returns whether the algorithm supports a row count.
int64_t TileRows(int64_t rows, const std::function<bool(int64_t)>& is_taken);

class GemmTiles {
 public:
  GemmTiles() = default;
  ~GemmTiles();
  GemmTiles(const GemmTiles&) = delete;
  GemmTiles& operator=(const GemmTiles&) = delete;

  // Calls multiply once for each tile of tile_rows rows. If the last tile has fewer rows, its x is
  // copied to scratch memory and padded with undefined rows, and its rows of y are copied back.
  int Run(const GemmArgs& args,
          int64_t tile_rows,
          Stream stream,
          const std::function<int(const GemmArgs&)>& multiply);

 private:
  int RunPadded(const GemmArgs& args,
                int64_t tile_rows,
                Stream stream,
                const std::function<int(const GemmArgs&)>& multiply);
  // Makes the last element of memory_ at least `bytes` large. Does not free the earlier elements,
  // since a recorded graph may use their addresses.
  int Reserve(int64_t bytes);

  std::vector<void*> memory_;  // the last element is the largest
  int64_t capacity_bytes_ = 0;
};

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GEMM_TILES_H_
