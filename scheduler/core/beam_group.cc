#include "scheduler/core/beam_group.h"

#include <algorithm>
#include <span>
#include <utility>

namespace quire {
namespace {

// Turns the group's sequences into the next live beams.
void AssignBeams(CoreState& state, SequenceGroup& group, const BeamStep& step) {
  std::vector<Sequence>& sequences = group.sequences();
  const std::vector<size_t> parents = group.beams->sequence_of_beam;
  std::vector<bool> is_taken(sequences.size(), false);
  std::vector<size_t> sequence_of_beam(step.beams.size(), sequences.size());
  const auto parent_of = [&](size_t beam) {
    return parents[static_cast<size_t>(step.beams[beam].parent)];
  };
  for (size_t beam = 0; beam < sequence_of_beam.size(); ++beam) {
    if (!is_taken[parent_of(beam)]) {
      is_taken[parent_of(beam)] = true;
      sequence_of_beam[beam] = parent_of(beam);
    }
  }
  for (size_t index : parents) {
    if (!is_taken[index]) {
      state.epoch->kv_cache.Free(sequences[index].table);
      sequences[index].BecomeIdle();
    }
  }
  for (size_t beam = 0; beam < sequence_of_beam.size(); ++beam) {
    if (sequence_of_beam[beam] == sequences.size()) {
      const auto free = std::find(is_taken.begin(), is_taken.end(), false);
      sequence_of_beam[beam] = static_cast<size_t>(free - is_taken.begin());
      is_taken[sequence_of_beam[beam]] = true;
      const Sequence& parent = sequences[parent_of(beam)];
      Sequence& child = sequences[sequence_of_beam[beam]];
      state.epoch->kv_cache.Fork(parent.table, parent.num_computed_tokens(), child.table);
      child.BecomeForkOf(parent);
    }
  }
  for (size_t beam = 0; beam < sequence_of_beam.size(); ++beam) {
    sequences[sequence_of_beam[beam]].CommitForced(step.beams[beam].token_id);
  }
  group.beams->sequence_of_beam = std::move(sequence_of_beam);
}

void GoOn(CoreState& state, SequenceGroup& group) {
  std::vector<std::span<const BeamCandidate>> candidates;
  for (size_t index : group.beams->sequence_of_beam) {
    candidates.push_back(group.sequences()[index].candidates());
  }
  const BeamStep& step = group.beams->search.Step(candidates);
  if (group.beams->search.is_done()) {
    // Only non-finite logits can make the search find too few hypotheses. So output sequences
    // without a hypothesis end with kNonFinite.
    state.FinishBeamSearch(group, group.beams->search.BestHypotheses(), FinishReason::kNonFinite);
  } else {
    AssignBeams(state, group, step);
  }
}

}  // namespace

BeamSearchParams SearchParamsOf(const Request& request) {
  return {.num_beams = request.beam_search->num_beams,
          .num_hypotheses = request.num_sequences,
          .length_penalty = request.beam_search->length_penalty,
          .early_stopping = request.beam_search->early_stopping,
          .max_tokens = request.max_tokens,
          .min_tokens = std::min(request.sampling.min_tokens, request.max_tokens),
          .stop_token_ids = request.stop_token_ids};
}

void TakeCandidates(CoreState& state,
                    SequenceGroup& group,
                    Sequence& sequence,
                    const std::vector<TokenLogprob>& top_logprobs) {
  if (!group.beams.has_value()) {
    const auto leader = static_cast<size_t>(sequence.sequence_index());
    group.beams.emplace(LiveBeams{.search = BeamSearch(SearchParamsOf(group.request())),
                                  .sequence_of_beam = {leader}});
  }
  std::vector<BeamCandidate> candidates;
  candidates.reserve(top_logprobs.size());
  for (const TokenLogprob& top : top_logprobs) {
    candidates.push_back({.token_id = top.token_id, .logprob = top.logprob});
  }
  sequence.KeepCandidates(std::move(candidates));
  const bool all_have_theirs = std::all_of(
      group.beams->sequence_of_beam.begin(),
      group.beams->sequence_of_beam.end(),
      [&group](size_t index) { return !group.sequences()[index].candidates().empty(); });
  if (all_have_theirs) {
    GoOn(state, group);
  }
}

}  // namespace quire
