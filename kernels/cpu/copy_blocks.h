// CopyBlocks copies whole KV blocks inside the pool (copy-on-write), parallel over blocks.
//
// Thread safety: one caller per team at a time.
#ifndef QUIRE_KERNELS_CPU_COPY_BLOCKS_H_
#define QUIRE_KERNELS_CPU_COPY_BLOCKS_H_

#include "kernels/api/kernel_backend.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

// All instruction sets use this one function, because memcpy chooses its instructions at run time.
void CopyBlocks(const CopyBlocksParams& params, ThreadTeam& team);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_COPY_BLOCKS_H_
