// Ids that scheduler and workers use. The glossary in ARCHITECTURE.md explains the terms.
//
// Thread safety: value types.
#ifndef QUIRE_COMMON_BASE_IDS_H_
#define QUIRE_COMMON_BASE_IDS_H_

#include <cstdint>

#include "common/base/strong_id.h"

namespace quire {

// A block of the device pool. An id means the same place in the pool on every rank. BlockId is a
// plain integer, because block tables are arrays of ids on the wire and in kernels. Widen an id to
// int64_t before multiplying: id * block elements overflows 32 bits in any real pool.
using BlockId = int32_t;

// The null block is never allocated. Padding of block tables names this block, so that a stray read
// stays in the pool.
inline constexpr BlockId kNullBlockId = 0;

// A block of the host pool, to which device blocks are swapped. There is no null host block.
using HostBlockId = int32_t;

using TokenId = int32_t;

// One client request, numbered by the scheduler in order of arrival.
using RequestId = StrongId<struct RequestIdTag, uint64_t>;

// Short name by which scheduler and worker refer to a sequence: an integer below max_sequences. A
// handle can be reused when the step that released it has been answered.
using SequenceHandle = uint32_t;

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_IDS_H_
