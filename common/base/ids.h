// Ids that scheduler and workers use. The glossary in ARCHITECTURE.md explains the terms.
//
// Thread safety: value types.
#ifndef QUIRE_COMMON_BASE_IDS_H_
#define QUIRE_COMMON_BASE_IDS_H_

#include <cstdint>

#include "common/base/strong_id.h"

namespace quire {

// The index of a block in the device pool; every rank uses the same indices. BlockId is a plain
// integer, because block tables are arrays of ids on the wire and in kernels. Widen an id to
// int64_t before multiplying: id * (elements per block) overflows 32 bits in any real pool.
using BlockId = int32_t;

// The null block is never allocated. Block tables are padded with its id, so that a kernel that
// reads a block past the end of a sequence stays in the pool.
inline constexpr BlockId kNullBlockId = 0;

// The index of a block in the host pool, into which device blocks are swapped out. There is no null
// host block.
using HostBlockId = int32_t;

using TokenId = int32_t;

// Number of a client request, given by the scheduler in order of arrival.
using RequestId = StrongId<struct RequestIdTag, uint64_t>;

// A number below max_sequences by which scheduler and workers refer to a sequence. The scheduler
// may reuse a handle after the workers have answered the step that released the handle.
using SequenceHandle = uint32_t;

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_IDS_H_
