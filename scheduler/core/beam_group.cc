#include "scheduler/core/beam_group.h"

#include <algorithm>
#include <span>
#include <utility>

namespace quire {
namespace {

// Turns the group's sequences into the next live beams.
void Place(CoreState& state, SequenceGroup& group, const BeamStep& step) {
  std::vector<Sequence>& sequences = group.sequences();
  const std::vector<size_t> parents = group.beams->places;
  std::vector<bool> is_taken(sequences.size(), false);
  std::vector<size_t> places(step.beams.size(), sequences.size());
  const auto parent_of = [&](size_t beam) {
    return parents[static_cast<size_t>(step.beams[beam].parent)];
  };
  for (size_t beam = 0; beam < places.size(); ++beam) {
    if (!is_taken[parent_of(beam)]) {
      is_taken[parent_of(beam)] = true;
      places[beam] = parent_of(beam);
    }
  }
  for (size_t place : parents) {
    if (!is_taken[place]) {
      state.epoch->kv_cache.Free(sequences[place].table);
      sequences[place].BecomeIdle();
    }
  }
  for (size_t beam = 0; beam < places.size(); ++beam) {
    if (places[beam] == sequences.size()) {
      const auto free = std::find(is_taken.begin(), is_taken.end(), false);
      places[beam] = static_cast<size_t>(free - is_taken.begin());
      is_taken[places[beam]] = true;
      const Sequence& parent = sequences[parent_of(beam)];
      Sequence& child = sequences[places[beam]];
      state.epoch->kv_cache.Fork(parent.table, parent.num_computed_tokens(), child.table);
      child.BecomeForkOf(parent);
    }
  }
  for (size_t beam = 0; beam < places.size(); ++beam) {
    sequences[places[beam]].CommitForced(step.beams[beam].token_id);
  }
  group.beams->places = std::move(places);
}

void GoOn(CoreState& state, SequenceGroup& group) {
  std::vector<std::span<const BeamCandidate>> candidates;
  for (size_t place : group.beams->places) {
    candidates.push_back(group.sequences()[place].candidates());
  }
  const BeamStep& step = group.beams->search.Step(candidates);
  if (group.beams->search.is_done()) {
    // Only non-finite logits can make the search find too few hypotheses. So output sequences
    // without a hypothesis end with kNonFinite.
    state.FinishBeamSearch(group, group.beams->search.BestHypotheses(), FinishReason::kNonFinite);
  } else {
    Place(state, group, step);
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
    group.beams.emplace(
        LiveBeams{.search = BeamSearch(SearchParamsOf(group.request())), .places = {leader}});
  }
  std::vector<BeamCandidate> candidates;
  candidates.reserve(top_logprobs.size());
  for (const TokenLogprob& top : top_logprobs) {
    candidates.push_back({.token_id = top.token_id, .logprob = top.logprob});
  }
  sequence.KeepCandidates(std::move(candidates));
  const bool all_have_theirs =
      std::all_of(group.beams->places.begin(), group.beams->places.end(), [&group](size_t place) {
        return !group.sequences()[place].candidates().empty();
      });
  if (all_have_theirs) {
    GoOn(state, group);
  }
}

}  // namespace quire
