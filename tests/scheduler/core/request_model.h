// RequestModel is a simulation's knowledge of a request: its true history, without blocks or steps.
//
// Thread safety: value types.
#ifndef QUIRE_TESTS_SCHEDULER_CORE_REQUEST_MODEL_H_
#define QUIRE_TESTS_SCHEDULER_CORE_REQUEST_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/core/request.h"
#include "tests/scheduler/core/beam_oracle.h"
#include "tests/support/fake_worker.h"

namespace quire {

struct SequenceModel {
  std::vector<TokenId> token_ids;  // prompt, then output
  bool is_finished = false;
  int32_t num_non_finite = 0;  // in a row, as injected
  bool was_stopped = false;    // by FinishSequence
};

struct RequestModel {
  Request request;
  std::vector<SequenceModel> sequences;
  int32_t num_scored = 0;  // log-probabilities of the prompt that the client has
  bool was_aborted = false;
  bool had_non_finite = false;
  bool had_failed_swap_in = false;
  bool was_introduced = false;
  bool has_computed = false;
  bool lacks_capacity = false;
  std::optional<FakeWorker::PoisonToken> poison;  // crashes whoever computes it
  int32_t num_crashes = 0;          // of workers, by it, since it was last lost with them otherwise
  int32_t num_losses_alone = 0;     // of workers that were computing this request and no other
  std::optional<BeamOracle> beams;  // of beam search, once its first candidates are there

  bool was_recomputed() const { return had_non_finite || had_failed_swap_in; }  // not to make room
  // Tokens before it was introduced: the prompt, and the output that it brought.
  int64_t num_tokens() const {
    const auto num_prompt = static_cast<int64_t>(request.prompt_token_ids.size());
    int64_t num_tokens = num_prompt;
    for (const SequenceModel& sequence : sequences) {
      num_tokens += static_cast<int64_t>(sequence.token_ids.size()) - num_prompt;
    }
    return num_tokens;
  }
  bool is_beam_search() const { return request.beam_search.has_value(); }
  bool is_finished() const {
    return std::all_of(sequences.begin(), sequences.end(), [](const SequenceModel& sequence) {
      return sequence.is_finished;
    });
  }
};

// Properties of a request that decide which cached blocks it may share. It outlives the request,
// because cached blocks do.
struct CacheDomain {
  std::string salt;
  bool is_bypassing = false;
};

using RequestModels = std::map<uint64_t, RequestModel>;  // by id: oldest first

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_REQUEST_MODEL_H_
