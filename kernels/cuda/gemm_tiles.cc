#include "kernels/cuda/gemm_tiles.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <type_traits>

#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace {

constexpr int64_t kAlignmentBytes = 256;

int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

template <typename T>
T* Advance(T* pointer, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(pointer) + bytes);
}

}  // namespace

int64_t TileRows(int64_t rows, const std::function<bool(int64_t)>& is_taken) {
  constexpr int64_t kFewestTileRows = 8;
  for (int64_t tile = kFewestTileRows; tile <= kMostTileRows; tile *= 2) {
    if ((tile >= rows || tile == kMostTileRows) && is_taken(tile)) {
      return tile;
    }
  }
  return 0;
}

GemmTiles::~GemmTiles() {
  for (void* memory : memory_) {
    Free(memory);
  }
}

int GemmTiles::Reserve(int64_t bytes) {
  if (bytes <= capacity_bytes_) {
    return 0;
  }
  const auto grown = std::bit_ceil(static_cast<uint64_t>(bytes));
  void* memory = nullptr;
  if (const int error = Allocate(&memory, grown); error != 0) {
    return error;
  }
  memory_.push_back(memory);
  capacity_bytes_ = static_cast<int64_t>(grown);
  return 0;
}

int GemmTiles::Run(const GemmArgs& args,
                   int64_t tile_rows,
                   Stream stream,
                   const std::function<int(const GemmArgs&)>& multiply) {
  int error = 0;
  for (int64_t row = 0; row < args.rows && error == 0; row += tile_rows) {
    GemmArgs tile = args;
    tile.rows = std::min(tile_rows, args.rows - row);
    tile.x = Advance(args.x, row * args.in_features * SizeOf(args.dtype));
    tile.y = Advance(args.y, row * args.out_features * SizeOf(args.y_dtype));
    tile.x_scales = args.x_scales == nullptr ? nullptr : args.x_scales + row;
    error = tile.rows == tile_rows ? multiply(tile) : RunPadded(tile, tile_rows, stream, multiply);
  }
  return error;
}

int GemmTiles::RunPadded(const GemmArgs& args,
                         int64_t tile_rows,
                         Stream stream,
                         const std::function<int(const GemmArgs&)>& multiply) {
  const int64_t x_row_bytes = args.in_features * SizeOf(args.dtype);
  const int64_t y_row_bytes = args.out_features * SizeOf(args.y_dtype);
  const int64_t x_bytes = Aligned(tile_rows * x_row_bytes);
  const int64_t y_bytes = Aligned(tile_rows * y_row_bytes);
  const int64_t scale_bytes = Aligned(tile_rows * int64_t{sizeof(float)});
  int error = Reserve(x_bytes + y_bytes + scale_bytes);
  if (error != 0) {
    return error;
  }
  void* x = memory_.back();
  void* y = Advance(x, x_bytes);
  void* scales = Advance(y, y_bytes);
  GemmArgs tile = args;
  tile.rows = tile_rows;
  tile.x = x;
  tile.y = y;
  error = CopyOnDevice(x, args.x, static_cast<size_t>(args.rows * x_row_bytes), stream);
  if (error == 0 && args.x_scales != nullptr) {
    tile.x_scales = static_cast<const float*>(scales);
    error =
        CopyOnDevice(scales, args.x_scales, static_cast<size_t>(args.rows) * sizeof(float), stream);
  }
  error = error != 0 ? error : multiply(tile);
  return error != 0 ? error
                    : CopyOnDevice(args.y, y, static_cast<size_t>(args.rows * y_row_bytes), stream);
}

}  // namespace quire::gpu
