// CorePlayer plays bytes as events to a SchedulerCore with a FakeWorker behind it: requests of all
// kinds, aborts, stops, pins, plans, answers right and wrong, losses of workers, time that passes.
// After every few the core's own invariants hold; plans are what a worker takes, tokens are those
// that the history asks for, each sequence ends once; in the end everything ends and no block is
// left.
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
