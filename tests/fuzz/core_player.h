// CorePlayer plays bytes as events to a SchedulerCore with a FakeWorker behind it. The events:
// requests of all kinds, aborts, stops, pins, plans, right and wrong answers, losses of workers,
// passing time.
//
// After every few events the core checks its own invariants. Each plan must suit the worker, each
// token must follow from its history, and each sequence must end once. In the end everything has
// ended and no block is in use.
//
// Thread safety: for one thread.
#ifndef QUIRE_TESTS_FUZZ_CORE_PLAYER_H_
#define QUIRE_TESTS_FUZZ_CORE_PLAYER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "scheduler/core/scheduler_core.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/fake_worker.h"

namespace quire {

class CorePlayer {
 public:
  explicit CorePlayer(FuzzInput* input);

  void Play();   // until the bytes are used up
  void Drain();  // until everything has ended

 private:
  struct Live {
    Request request;
    std::vector<std::vector<TokenId>> tokens;  // by sequence, prompt first
    std::vector<bool> has_ended;
    int32_t num_scored = 0;  // log-probabilities of the prompt that were reported
  };

  void Do(int event);
  void AddRequest();
  void AskForMore(Request* request);
  void BeginLikeAnother(Request* request);
  void Resume(Request* request);
  void Pin();
  void Step();
  void Plan();
  void Answer();
  void AnswerWrongly();
  void BeginEpoch();
  void LoseWorkers();
  void TakeEvents();
  void OnPromptScored(const PromptScored& scored);
  void OnToken(const TokenCommitted& token);
  void OnFinished(const SequenceFinished& finished);
  RequestId TakeId();
  std::vector<TokenId> TakeTokens();

  FuzzInput& input_;
  const CoreConfig config_;
  const int32_t sliding_window_;
  SchedulerCore core_;
  std::optional<FakeWorker> worker_;
  std::optional<StepPlan> plan_;  // unanswered
  std::map<RequestId, Live> live_;
  Instant now_ = 0;
  uint64_t last_id_ = 0;
  uint64_t group_epoch_ = 0;
};

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_CORE_PLAYER_H_
