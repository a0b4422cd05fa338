// A kernel that only reads pages, by one of two kinds of copies to shared memory. It shows the
// upper bound of what an attention kernel can get from memory with as many bytes in flight.
//
// Tensor maps (boxes of the TMA unit) are not among the kinds. The emulator has none, and attention
// needs none: each block and head of the cache is contiguous, so one bulk copy brings it.
//
// Errors: as gpu_ops.h.
#ifndef QUIRE_TESTS_GPU_LOAD_KERNELS_H_
#define QUIRE_TESTS_GPU_LOAD_KERNELS_H_

#include <cstdint>

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

enum class LoadKind : uint8_t {
  kAsync16,  // cp.async: each of 128 threads copies 16 bytes at a time
  kBulk,     // cp.async.bulk: one thread of each of up to four warps copies a piece at a time
};

struct LoadArgs {
  const void* data = nullptr;      // 16-byte aligned
  const int32_t* table = nullptr;  // [num_pages]: the place of each page in data, in pages
  int32_t num_pages = 0;
  int32_t page_bytes = 0;   // a multiple of piece_bytes
  int32_t piece_bytes = 0;  // of a copy or, for kAsync16, of a stage: then a multiple of 2048
  int32_t num_stages = 0;   // of a CTA, all in flight; for kBulk at most 3 or a multiple of 4
  int32_t num_ctas = 0;
  uint32_t* sum = nullptr;  // the first words of all pieces are added to it
};

// Returns the bytes of a CTA's shared memory.
int64_t LoadSharedBytes(const LoadArgs& args);

// Returns kUnsupported before compute capability 9.0.
int LoadPages(const LoadArgs& args, LoadKind kind, Stream stream);

// Adds the same words to args.sum by plain reads.
int SumFirstWords(const LoadArgs& args, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_LOAD_KERNELS_H_
