// BeamGroup carries out beam search with the sequences of a group: when every live beam has its
// candidates, BeamSearch says who goes on, and the sequences become that.
//
// The first of a beam's continuations stays in its place, and the worker is told the token that it
// goes on with. Every other one takes a free place as a fork: it shares all blocks, and copies the
// last one before it writes to it. A beam that nobody continues gives its blocks back. So blocks
// are shared like a tree, and only the last one is ever copied.
//
// Thread safety: free functions; the state is not thread-safe.
// Source:        PagedAttention, Kwon et al. 2023, section 4.4 and figure 9.
#ifndef QUIRE_SCHEDULER_CORE_BEAM_GROUP_H_
#define QUIRE_SCHEDULER_CORE_BEAM_GROUP_H_

#include <vector>

#include "common/step/step_result.h"
#include "scheduler/core/core_state.h"

namespace quire {

// The search of a request with beam_search.
BeamSearchParams SearchParamsOf(const Request& request);

// The next tokens of one live beam. With those of the last beam all of them go on, or the request
// is finished. REQUIRES: the group is running; the sequence is a live beam without a gap.
void TakeCandidates(CoreState& state,
                    SequenceGroup& group,
                    Sequence& sequence,
                    const std::vector<TokenLogprob>& top_logprobs);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_BEAM_GROUP_H_
