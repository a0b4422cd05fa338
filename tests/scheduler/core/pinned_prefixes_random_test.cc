// Random histories in which prefixes are pinned and unpinned while requests that begin like them,
// beam searches among them, come and go, blocks are short, rows are not finite and workers are
// lost. After every event the core checks its invariants; tokens are those of the true history; in
// the end everything finishes and what is pinned, and nothing else, is held. Each is a function of
// its seed.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_worker.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr int32_t kVocabSize = 89;

struct Totals {
  int64_t num_pinned = 0;
  int64_t num_refused = 0;
  int64_t num_unpinned = 0;
  int64_t num_epochs = 0;
  int64_t num_waiting_for_room = 0;
  int64_t num_preemptions = 0;
  int64_t num_hits = 0;
};

class PrefixHistory {
 public:
  explicit PrefixHistory(uint64_t seed)
      : random_(seed),
        core_(CoreConfig{.watermark = random_.OneIn(2) ? 0.0 : 0.1,
                         .scheduling_policy = static_cast<SchedulingPolicyKind>(random_.Below(3)),
                         .preemption_mode = static_cast<PreemptionMode>(random_.Below(3)),
                         .prefix_caching = true,
                         .max_pinned_share = 0.1 * random_.Between(2, 8)}),
        sliding_window_(random_.OneIn(3) ? random_.Between(1, 20) : 0) {
    for (std::vector<TokenId>& text : texts_) {
      text.resize(60);
      for (TokenId& token : text) {
        token = random_.Below(kVocabSize);
      }
    }
  }

  void Run(int32_t num_events, Totals& totals) {
    for (int32_t i = 0; i < num_events && !::testing::Test::HasFailure(); ++i) {
      DrawEvent(totals);
      TakeEvents();
      core_.CheckInvariants();
    }
    Drain(totals);
  }

 private:
  struct Live {
    std::vector<TokenId> token_ids;
    bool is_beam = false;  // its tokens come with the end of the search; other tests look at them
    bool is_finished = false;
  };

  void DrawEvent(Totals& totals) {
    if (random_.OneIn(6)) {
      AddRequest();
    } else if (random_.OneIn(15)) {
      Pin(totals);
    } else if (random_.OneIn(25)) {
      Unpin(totals);
    } else if (random_.OneIn(20)) {
      core_.AbortRequest(RequestId(static_cast<uint64_t>(random_.Between(1, 1 + LastId()))));
    } else if (!worker_.has_value()) {
      BeginEpoch(totals);
    } else if (random_.OneIn(60)) {
      core_.OnWorkersLost();
      worker_.reset();
      plan_.reset();
    } else if (plan_.has_value()) {
      Apply(/*may_fail=*/true);
    } else {
      plan_ = core_.PlanStep(0);
    }
  }

  int32_t LastId() const { return static_cast<int32_t>(next_id_) - 1; }
  std::vector<TokenId> Beginning() {
    const std::vector<TokenId>& text = texts_[static_cast<size_t>(random_.Below(3))];
    return {text.begin(), text.begin() + random_.Between(1, 59)};
  }

  void AddRequest() {
    Request request{.id = RequestId(next_id_), .prompt_token_ids = Beginning()};
    request.num_sequences = random_.Between(1, 3);
    request.max_tokens = random_.Between(1, 30);
    request.sampling.seed = next_id_;
    request.cache_salt = random_.OneIn(4) ? "salt" : "";
    request.bypasses_prefix_cache = random_.OneIn(8);
    if (random_.OneIn(4)) {
      const int32_t num_beams = random_.Between(request.num_sequences, 4);
      request.beam_search = {.num_beams = num_beams};
      request.sampling.num_logprobs = num_beams;
    }
    const Live live{.token_ids = request.prompt_token_ids,
                    .is_beam = request.beam_search.has_value()};
    const int32_t num_sequences = request.num_sequences;
    const uint64_t id = next_id_++;
    if (core_.AddRequest(std::move(request)) == AddOutcome::kQueued) {
      for (int32_t index = 0; index < num_sequences; ++index) {
        live_[{id, index}] = live;
      }
    }
  }

  void Pin(Totals& totals) {
    const PinResult result = core_.PinPrefix(
        RequestId(next_id_++), Beginning(), random_.OneIn(4) ? "salt" : std::string());
    const bool is_pinned = result.outcome == PinOutcome::kAccepted;
    totals.num_pinned += is_pinned ? 1 : 0;
    totals.num_refused +=
        result.outcome == PinOutcome::kExceedsShare || result.outcome == PinOutcome::kStarvesRequest
            ? 1
            : 0;
  }

  void Unpin(Totals& totals) {
    const std::vector<PrefixInfo> prefixes = core_.prefixes();
    if (prefixes.empty()) {
      EXPECT_FALSE(core_.UnpinPrefix(RequestId(next_id_)));
      return;
    }
    const auto index = static_cast<size_t>(random_.Below(static_cast<int32_t>(prefixes.size())));
    EXPECT_TRUE(core_.UnpinPrefix(prefixes[index].id));
    ++totals.num_unpinned;
  }

  void BeginEpoch(Totals& totals) {
    if (limits_.num_blocks == 0 || random_.OneIn(2)) {
      limits_ = {.num_blocks = random_.Between(4, 60),
                 .num_host_blocks = random_.Below(30),
                 .block_size_tokens = 1 << random_.Below(4),
                 .max_sequences = random_.Between(1, 8),
                 .max_tokens_per_step = random_.Between(1, 40),
                 .max_model_len = random_.Between(20, 100),
                 .vocab_size = kVocabSize,
                 .sliding_window = sliding_window_};
    }
    worker_.emplace(limits_, random_.Below(3));
    core_.BeginEpoch(1, ++group_epoch_, limits_);
    ++totals.num_epochs;
    for (const PrefixInfo& info : core_.prefixes()) {
      totals.num_waiting_for_room += info.state == PrefixState::kWaiting ? 1 : 0;
    }
  }

  void Apply(bool may_fail) {
    auto result = worker_->Execute(*plan_);
    ASSERT_TRUE(result.ok()) << result.status();
    for (SampledToken& sampled : result->sampled) {
      sampled.finite = !may_fail || !random_.OneIn(40);
    }
    ASSERT_TRUE(core_.ApplyStepResult(*result).ok());
    plan_.reset();
  }

  void TakeEvents() {
    for (const OutputEvent& event : core_.TakeEvents()) {
      if (const auto* token = std::get_if<TokenCommitted>(&event)) {
        Live& live = live_.at({token->request_id.value(), token->sequence_index});
        EXPECT_TRUE(live.is_beam || token->token_id == ExpectedToken(live.token_ids,
                                                                     token->request_id.value(),
                                                                     token->sequence_index,
                                                                     kVocabSize,
                                                                     sliding_window_));
        live.token_ids.push_back(token->token_id);
      } else {
        const auto& finished = std::get<SequenceFinished>(event);
        live_.at({finished.request_id.value(), finished.sequence_index}).is_finished = true;
      }
    }
  }

  void Drain(Totals& totals) {
    int32_t num_steps_left = 20'000;
    while (!::testing::Test::HasFailure() &&
           (core_.has_work() || plan_.has_value() || !worker_.has_value()) &&
           num_steps_left-- > 0) {
      if (!worker_.has_value()) {
        BeginEpoch(totals);
      } else if (plan_.has_value()) {
        Apply(/*may_fail=*/false);
      } else {
        plan_ = core_.PlanStep(0);
      }
      TakeEvents();
      core_.CheckInvariants();
    }
    EXPECT_GT(num_steps_left, 0) << "everything ends";
    for (const auto& [key, live] : live_) {
      EXPECT_TRUE(live.is_finished) << "request " << key.first;
    }
    CoreStats stats = core_.stats();
    EXPECT_EQ(stats.num_used_blocks, stats.num_pinned_blocks);
    EXPECT_LE(stats.num_pinned_blocks, 0.8 * stats.num_blocks);
    totals.num_preemptions += stats.num_preemptions;
    totals.num_hits += stats.num_prefix_hit_tokens;
    for (const PrefixInfo& info : core_.prefixes()) {
      EXPECT_NE(info.state, PrefixState::kComputing);
      EXPECT_TRUE(core_.UnpinPrefix(info.id));
    }
    core_.CheckInvariants();
    stats = core_.stats();
    EXPECT_EQ(stats.num_free_blocks, stats.num_blocks) << "nothing is held any more";
    EXPECT_EQ(stats.num_stored_tokens, 0);
  }

  Random random_;
  SchedulerCore core_;
  const int32_t sliding_window_;
  std::vector<TokenId> texts_[3];
  std::optional<FakeWorker> worker_;
  StepLimits limits_;
  std::optional<StepPlan> plan_;
  std::map<std::pair<uint64_t, int32_t>, Live> live_;
  uint64_t group_epoch_ = 0;
  uint64_t next_id_ = 1;
};

TEST(PinnedPrefixesRandomTest, HoldWhatIsPinnedAndNothingElse) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(seed);
    PrefixHistory(seed).Run(400, totals);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  // A history in which something never happens proves nothing about it.
  EXPECT_GT(totals.num_pinned, 2000);
  EXPECT_GT(totals.num_refused, 500);
  EXPECT_GT(totals.num_unpinned, 1000);
  EXPECT_GT(totals.num_epochs, 1000);
  EXPECT_GT(totals.num_waiting_for_room, 100);
  EXPECT_GT(totals.num_preemptions, 300);
  EXPECT_GT(totals.num_hits, 20'000);
}

}  // namespace
}  // namespace quire
