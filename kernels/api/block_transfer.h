// Transfers move whole blocks between the KV pool and host memory, to swap sequences out and in.
//
// Thread safety: value types.
// Source:        PagedAttention, Kwon et al. 2023, section 4.5. A block is contiguous, so that
//                swapping a block is one copy.
#ifndef QUIRE_KERNELS_API_BLOCK_TRANSFER_H_
#define QUIRE_KERNELS_API_BLOCK_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/ids.h"
#include "kernels/api/kv_cache_layout.h"

namespace quire {

enum class TransferDirection : uint8_t { kToHost, kToDevice };

// REQUIRES: no block id and no host block id occurs twice. The spans may be reused when
// StartTransfer returns.
struct BlockTransferParams {
  TransferDirection direction = TransferDirection::kToHost;
  KvCacheView cache;
  // Memory from AllocateHost: contiguous blocks, each of the pool's block size.
  std::byte* host = nullptr;
  std::span<const BlockId> blocks;
  std::span<const HostBlockId> host_blocks;  // same length as blocks
};

// Transfers of one backend are numbered in the order in which they were started: 1, 2, 3, ...
using TransferId = uint64_t;

}  // namespace quire

#endif  // QUIRE_KERNELS_API_BLOCK_TRANSFER_H_
