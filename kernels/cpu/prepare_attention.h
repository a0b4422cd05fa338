// PrepareAttention is the pass between the qkv product and attention (kernels/api/attention.h). It
// normalizes q and k per head, rotates them, and writes k and v into the cache. Parallel over
// tokens. Each token is computed separately, so that its bits do not depend on other tokens.
//
// Thread safety: one caller per team at a time.
// Cost:          one pass over qkv. Keys are stored dim-major, so each element of a key is written
//                to a separate cache line.
#ifndef QUIRE_KERNELS_CPU_PREPARE_ATTENTION_H_
#define QUIRE_KERNELS_CPU_PREPARE_ATTENTION_H_

#include "kernels/api/attention.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

void PrepareAttentionAvx512(const PrepareAttentionParams& params, ThreadTeam& team);
void PrepareAttentionAvx2(const PrepareAttentionParams& params, ThreadTeam& team);
void PrepareAttentionPortable(const PrepareAttentionParams& params, ThreadTeam& team);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PREPARE_ATTENTION_H_
