// The tests' own account of swizzled rows (kernels/api/kv_cache_layout.h), in the words of PTX: a
// piece is an array of dense rows of 128, 64, 32 or 16 bytes, and bits of the address are exchanged
// by XOR. The kernels compute with chunks and slots.
#ifndef QUIRE_TESTS_KERNELS_CUDA_SWIZZLED_ROWS_H_
#define QUIRE_TESTS_KERNELS_CUDA_SWIZZLED_ROWS_H_

#include <cstdint>

#include "kernels/api/kv_cache_layout.h"

namespace quire::gpu {

// Returns the distance in elements from the first key (or value) of a block and head to dim `dim`
// of the key (or value) in `slot`.
inline int64_t SwizzledElement(const KvCacheLayout& layout, int64_t slot, int64_t dim) {
  const int64_t size = SizeOf(layout.dtype);
  const int64_t row_bytes = layout.head_dim * size;
  int64_t piece = 0;  // first byte of a row's piece, before swizzling
  int64_t width = 128;
  while (piece + width > row_bytes || dim * size >= piece + width) {
    if (piece + width > row_bytes) {
      width /= 2;
    } else {
      piece += width;
    }
  }
  // The XOR takes the lowest bits of the number of the 128 bytes that hold the address.
  int64_t address = slot * width + dim * size - piece;
  address ^= (address / 128 % (width / 16)) * 16;
  return (piece * layout.block_size_tokens + address) / size;
}

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_SWIZZLED_ROWS_H_
