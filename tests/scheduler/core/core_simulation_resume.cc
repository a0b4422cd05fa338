// The scheduler's death in CoreSimulation: its clients resume at another scheduler, with the tokens
// that they have.
#include <utility>

#include "tests/scheduler/core/core_simulation.h"

namespace quire {

void CoreSimulation::LoseScheduler() {
  const RequestModels before = std::exchange(requests_, {});
  core_.emplace(config_);
  core_->KeepCacheEvents();
  cache_events_.OnNewCore();
  worker_.reset();
  audit_.reset();
  plan_.reset();
  fairness_ = FairnessAudit();
  limits_known_ = false;
  if (deaths_.OneIn(2)) {  // else the first workers come after the clients
    BeginEpoch();
  }
  for (const auto& [id, model] : before) {
    if (!model.is_finished()) {
      Resume(model);
    }
  }
}

void CoreSimulation::Resume(const RequestModel& before) {
  Request request = before.request;
  request.is_resumed = true;
  const int32_t num_lost = deaths_.OneIn(4) ? deaths_.Between(0, before.num_scored) : 0;
  request.num_known_prompt_logprobs = before.num_scored - num_lost;
  RequestModel model = ModelOf(request);
  model.num_scored = request.num_known_prompt_logprobs;
  if (!before.is_beam_search()) {
    for (size_t i = 0; i < before.sequences.size(); ++i) {
      SequenceModel sequence = before.sequences[i];
      LoseTail(before.request, &sequence);
      const auto output =
          sequence.token_ids.begin() + static_cast<std::ptrdiff_t>(request.prompt_token_ids.size());
      request.resumed.push_back(
          {.token_ids = {output, sequence.token_ids.end()}, .has_ended = sequence.is_finished});
      num_resumed_tokens_ += sequence.token_ids.end() - output;
      model.sequences[i].token_ids = std::move(sequence.token_ids);
      model.sequences[i].is_finished = sequence.is_finished;
    }
  }
  const AddOutcome expected = ExpectedOutcome(model);
  const AddOutcome outcome = core_->AddRequest(request);
  Trace(static_cast<uint64_t>(outcome));
  Expect(outcome == expected, "a resumed request is refused when a bound says so, and only then");
  if (outcome == AddOutcome::kQueued) {
    model.poison = before.poison;
    if (worker_.has_value() && model.poison.has_value()) {
      worker_->Poison(request.id.value(), *model.poison);
    }
    requests_.emplace(request.id.value(), std::move(model));
  }
}

// Takes tokens from the client's end: the dead scheduler's last tokens may not have reached it.
void CoreSimulation::LoseTail(const Request& request, SequenceModel* sequence) {
  const auto num_output =
      static_cast<int32_t>(sequence->token_ids.size() - request.prompt_token_ids.size());
  if (num_output > 0 && deaths_.OneIn(4)) {
    const int32_t num_lost = deaths_.Between(1, num_output);
    sequence->token_ids.resize(sequence->token_ids.size() - static_cast<size_t>(num_lost));
    sequence->is_finished = false;
  }
}

}  // namespace quire
