// BeamSearch decides which beams of one request go on, which end and which are dropped. It computes
// no probabilities and holds no sequences. After each step of the model, the caller passes the
// likeliest next tokens of every live beam. BeamSearch returns, for each beam of the next step, the
// live beam that it continues. The search begins with one live beam, the prompt.
//
//   BeamSearch search(params);                 // CheckBeamSearchParams(params) is OK
//   while (!search.is_done()) {
//     ... compute the candidates of every beam of search.beams() ...
//     const BeamStep& step = search.Step(candidates);
//     ... fork, advance and free sequences as step says ...
//   }
//   ... search.BestHypotheses() ...
//
// The rules are those of Hugging Face transformers 5 (`_beam_search` of generation/utils.py)
// without sampling, for a batch of one. All extensions of all live beams by one token are ranked by
// score:
// - an extension that ends in a stop token or reaches max_tokens becomes a hypothesis if it ranks
//   among the first num_beams; otherwise it is dropped;
// - the first num_beams of the other extensions are the next live beams.
// The best num_beams hypotheses are kept. When num_beams hypotheses are found, the search can end
// before the beams reach max_tokens; EarlyStopping decides when. These rules hold for num_beams = 1
// too: the search goes on after a stop token as long as a longer output can still have a better
// score. Transformers decodes greedily with one beam, so its result can differ.
//
// Ties:          extensions with equal scores are ranked by the index of their live beam, then by
//                the order of its candidates. An older hypothesis is ranked before a newer one.
//                (Transformers uses torch.topk, which promises no order.) As in transformers, a
//                live beam that only ties with the worst hypothesis does not prolong the search.
// Scores:        sums of logprobs (natural logarithm) in float, as in transformers. The score
//                of a hypothesis is its sum of logprobs, divided by
//                (output tokens, stop token included) ^ length_penalty.
//
// Thread safety: not thread-safe. No clock, no randomness: equal calls give equal answers.
// Cost:          Step is O(num_beams * (num_beams + stop tokens)). The history takes 8 bytes per
//                live beam and step. Step allocates only when the history is full, and then doubles
//                its memory.
// Source:        transformers 5.23; length normalization: Wu et al. 2016, section 7, simplified.
#ifndef QUIRE_SCHEDULER_CORE_BEAM_SEARCH_H_
#define QUIRE_SCHEDULER_CORE_BEAM_SEARCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/base/ids.h"

namespace quire {

// Decides when a search that has found num_beams hypotheses ends.
enum class EarlyStopping : uint8_t {
  // The search ends if the best live beam scores no better than the worst hypothesis.
  kFalse,
  // The search ends at once.
  kTrue,
  // As kFalse, but if length_penalty > 0, the best live beam is scored as if it had max_tokens
  // tokens.
  kNever,
};

struct BeamSearchParams {
  // The worker answers with at most this many candidates per sequence.
  static constexpr int32_t kMaxCandidates = 20;
  static constexpr int32_t kMaxBeams = kMaxCandidates / 2;
  // With a larger penalty, scores would leave the range of a float.
  static constexpr double kMaxLengthPenalty = 5.0;

  int32_t num_beams = 1;
  int32_t num_hypotheses = 1;   // number of hypotheses to return, at most num_beams
  double length_penalty = 1.0;  // > 0 favors long hypotheses, < 0 short ones; 0: plain sums
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  int32_t max_tokens = 16;              // upper bound on output tokens, >= 1
  int32_t min_tokens = 0;               // output tokens that must precede a stop token
  std::vector<TokenId> stop_token_ids;  // in any order; a hypothesis includes its stop token

  // Number of candidates per beam that always suffices for a step. In the worst case, every stop
  // token ranks before the num_beams candidates that become live beams.
  int32_t num_candidates() const { return num_beams + static_cast<int32_t>(stop_token_ids.size()); }
};

// Errors: kInvalidArgument; the message names the parameter that is out of range.
absl::Status CheckBeamSearchParams(const BeamSearchParams& params);

struct BeamCandidate {
  TokenId token_id = 0;
  float logprob = 0.0F;
};

struct LiveBeam {
  int32_t parent = 0;  // index in the live beams of the previous step
  TokenId token_id = 0;
  float score = 0.0F;  // sum of logprobs
};

struct BeamStep {
  std::vector<LiveBeam> beams;   // the next live beams, best first; empty when the search is over
  std::vector<int32_t> dropped;  // indices of previous beams that no next beam continues, ascending
};

struct BeamHypothesis {
  std::vector<TokenId> token_ids;  // output tokens; if has_stopped, the last one is a stop token
  float score = 0.0F;              // normalized by length
  bool has_stopped = false;        // false: the hypothesis reached max_tokens
};

class BeamSearch {
 public:
  // REQUIRES: CheckBeamSearchParams(params).ok()
  explicit BeamSearch(BeamSearchParams params);

  // The live beams, in the order in which Step takes candidates. Before the first step there is one
  // beam, the prompt, whose parent and token mean nothing.
  const std::vector<LiveBeam>& beams() const { return step_.beams; }

  // Advances the live beams by one token. candidates[i] holds the likeliest next tokens of beam i,
  // best first: at least params.num_candidates(), or the whole vocabulary if that is smaller. A
  // candidate with a non-finite logprob is skipped. If too few candidates are left, fewer than
  // num_beams beams go on. If no beam goes on, the search is over. The result is valid until the
  // next call. REQUIRES: !is_done(); candidates has an entry for every live beam.
  const BeamStep& Step(std::span<const std::span<const BeamCandidate>> candidates);

  bool is_done() const { return is_done_; }
  int32_t num_tokens() const { return num_tokens_; }  // output tokens of each live beam
  // Number of hypotheses found so far.
  int32_t num_hypotheses() const { return static_cast<int32_t>(hypotheses_.size()); }

  // Returns the best hypotheses so far, best first, at most params.num_hypotheses. After the
  // search, there are fewer only if candidates ran out.
  std::vector<BeamHypothesis> BestHypotheses() const;

 private:
  // A token and a link to the token before it.
  struct HistoryNode {
    int32_t previous = 0;  // index in history_; kNoNode: this is the first output token
    TokenId token_id = 0;
  };

  struct Ending {
    int32_t previous = 0;  // index in history_ of the token before last_token_id, or kNoNode
    TokenId last_token_id = 0;
    bool has_stopped = false;
    float score = 0.0F;
  };

  static constexpr int32_t kNoNode = -1;

  void RankExtensions(std::span<const std::span<const BeamCandidate>> candidates);
  void GoOn(const LiveBeam& extension);
  void End(const LiveBeam& extension, bool has_stopped);
  bool CanImprove() const;  // false: the search ends, and the next beams are dropped
  void ListDropped();
  bool IsStopToken(TokenId token_id) const;
  float Normalized(float score, int32_t num_tokens) const;

  BeamSearchParams params_;  // with sorted stop_token_ids
  int32_t num_tokens_ = 0;
  bool is_done_ = false;
  BeamStep step_;               // step_.beams: the live beams
  std::vector<int32_t> nodes_;  // for each live beam: index in history_ of its last token
  std::vector<LiveBeam> next_beams_;
  std::vector<int32_t> next_nodes_;
  std::vector<HistoryNode> history_;
  std::vector<Ending> hypotheses_;  // best first, at most num_beams
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_BEAM_SEARCH_H_
