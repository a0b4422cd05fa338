// The identities of the system. See the glossary in ARCHITECTURE.md.
//
// Thread safety: value types.
#ifndef QUIRE_COMMON_BASE_IDS_H_
#define QUIRE_COMMON_BASE_IDS_H_

#include <cstdint>

#include "common/base/strong_id.h"

namespace quire {

// A place in the device pool, valid on every rank. Plain integer: block tables are arrays of them
// on the wire and in kernels. Widen to int64_t before multiplying: id * block elements overflows
// 32 bits in any real pool.
using BlockId = int32_t;

// Never allocated. Padding of block tables points at it, so that a stray read stays in the pool.
inline constexpr BlockId kNullBlockId = 0;

// A place in the host pool that blocks are swapped to. All of them are usable: there is no null
// host block.
using HostBlockId = int32_t;

using TokenId = int32_t;

// One client request, numbered by the scheduler in order of arrival.
using RequestId = StrongId<struct RequestIdTag, uint64_t>;

// A worker's name for a sequence it knows: a small integer below max_sequences, reused after its
// release was answered.
using SequenceHandle = uint32_t;

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_IDS_H_
