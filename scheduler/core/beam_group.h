// BeamGroup carries out beam search with the sequences of a group. Once every live beam has its
// candidates, BeamSearch chooses the next live beams. The sequences of the group then take over the
// tokens and blocks of these beams.
//
// The best next beam that continues a live beam stays in the live beam's sequence. The sequence's
// next slice tells the worker to use the next beam's token. Every other next beam becomes a fork in
// an idle sequence (a sequence without a live beam). The fork shares all blocks of the live beam.
// Before the fork writes into its last block, it copies that block if the block is still shared. A
// live beam that no next beam continues gives its blocks back. So the shared blocks form a tree,
// and a fork copies at most one block.
//
// Thread safety: free functions on the thread that owns the state.
// Source:        PagedAttention, Kwon et al. 2023, section 4.4 and figure 9.
#ifndef QUIRE_SCHEDULER_CORE_BEAM_GROUP_H_
#define QUIRE_SCHEDULER_CORE_BEAM_GROUP_H_

#include <vector>

#include "common/step/step_result.h"
#include "scheduler/core/core_state.h"

namespace quire {

// Returns the parameters of the search. REQUIRES: request.beam_search.
BeamSearchParams SearchParamsOf(const Request& request);

// Takes the candidates for the next token of one live beam. When every live beam has its
// candidates, all beams advance or the request finishes. REQUIRES: the group is running; the
// sequence is a live beam, and all its known tokens are computed.
void TakeCandidates(CoreState& state,
                    SequenceGroup& group,
                    Sequence& sequence,
                    const std::vector<TokenLogprob>& top_logprobs);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_BEAM_GROUP_H_
