// Copies whole blocks within the pool, for copy-on-write. A block is cut into chunks of 32 KB. CTA
// (i, j) copies chunk j of block src[i] to block dst[i].
//
// Each thread has 8 loads of 16 bytes in flight before its first store, so a CTA of 256 threads has
// 32 KB in flight. An SM needs about 32 KB in flight to reach 1/132 of an H200's bandwidth.
//
// Limit:     a block has at most 65535 chunks, 2 GiB.
// Cost:      reads and writes each byte: 64 blocks of 2 MiB move 268 MB, 62 us at 4.3 TB/s.
// Registers: 56 (sm_90), no shared memory, so an SM runs 4 CTAs at once.
#include <cstdint>

#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 8;  // 16-byte loads per thread
constexpr int64_t kChunkVectors = int64_t{kThreads} * kLoads;

// pool: [num_blocks, block_vectors]; src, dst: [gridDim.x].
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kThreads, 4)
    CopyBlocksKernel(uint4* pool, int64_t block_vectors, const BlockId* src, const BlockId* dst) {
  const uint4* source = pool + src[blockIdx.x] * block_vectors;
  uint4* target = pool + dst[blockIdx.x] * block_vectors;
  const int64_t first = blockIdx.y * kChunkVectors + threadIdx.x;
  uint4 vectors[kLoads];
  QUIRE_UNROLL
  for (int i = 0; i < kLoads; ++i) {
    if (first + i * kThreads < block_vectors) {
      vectors[i] = source[first + i * kThreads];
    }
  }
  QUIRE_UNROLL
  for (int i = 0; i < kLoads; ++i) {
    if (first + i * kThreads < block_vectors) {
      target[first + i * kThreads] = vectors[i];
    }
  }
}

}  // namespace

int CopyBlocks(const CopyBlocksParams& params, Stream stream) {
  const int64_t block_vectors =
      params.cache.layout.block_bytes() / static_cast<int64_t>(sizeof(uint4));
  if (params.src.empty() || block_vectors == 0) {
    return 0;
  }
  const int64_t chunks = (block_vectors + kChunkVectors - 1) / kChunkVectors;
  return QUIRE_LAUNCH(CopyBlocksKernel,
                      dim3(static_cast<uint32_t>(params.src.size()), static_cast<uint32_t>(chunks)),
                      dim3(kThreads),
                      0,
                      stream,
                      static_cast<uint4*>(params.cache.base),
                      block_vectors,
                      params.src.data(),
                      params.dst.data());
}

}  // namespace quire::gpu
