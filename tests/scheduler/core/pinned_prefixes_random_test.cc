// Random histories, each a function of its seed. Prefixes are pinned and unpinned while requests
// that begin like them come and go, beam searches among them. Blocks are short, rows are not finite
// and workers are lost.
//
// After every event the core checks its invariants, tokens are those of the true history, and cache
// events give the shared part of the prefix cache. In the end everything finishes, and only pinned
// blocks are held.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/core/scheduler_core.h"
#include "tests/scheduler/core/cache_event_audit.h"
#include "tests/support/fake_worker.h"
#include "tests/support/random.h"
#include "tests/support/timed.h"

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

struct Profile {
  size_t num_texts = 3;  // that prompts and prefixes are beginnings of
  int32_t text_tokens = 60;
  int32_t loss_rate = 60;                 // one event in so many
  bool is_all_pinned = false;             // each text, when the first epoch has begun
  int32_t check_interval = 1;             // events between two checks of the invariants
  std::optional<StepLimits> limits = {};  // without a window; else each epoch draws them
};

// As many prefixes as a server keeps, with a pool that holds them all.
constexpr Profile kManyLong = {.num_texts = 256,
                               .text_tokens = 200,
                               .loss_rate = 10,
                               .is_all_pinned = true,
                               .check_interval = 50,
                               .limits = StepLimits{.num_blocks = 20'000,
                                                    .block_size_tokens = 16,
                                                    .max_sequences = 64,
                                                    .max_tokens_per_step = 4096,
                                                    .max_model_len = 400,
                                                    .vocab_size = kVocabSize}};

class PrefixHistory {
 public:
  explicit PrefixHistory(uint64_t seed, const Profile& profile = {})
      : profile_(profile),
        random_(seed),
        core_(std::in_place,
              CoreConfig{.watermark = random_.OneIn(2) ? 0.0 : 0.1,
                         .scheduling_policy = static_cast<SchedulingPolicyKind>(random_.Below(3)),
                         .preemption_mode = static_cast<PreemptionMode>(random_.Below(3)),
                         .prefix_caching = true,
                         .max_pinned_share = 0.1 * random_.Between(2, 8)}),
        sliding_window_(random_.OneIn(3) && !profile.limits.has_value() ? random_.Between(1, 20)
                                                                        : 0),
        texts_(profile.num_texts) {
    core_->KeepCacheEvents();
    for (std::vector<TokenId>& text : texts_) {
      text.resize(static_cast<size_t>(profile.text_tokens));
      for (TokenId& token : text) {
        token = random_.Below(kVocabSize);
      }
    }
  }

  void Run(int32_t num_events, Totals& totals) {
    if (profile_.is_all_pinned) {
      PinAll(totals);
    }
    for (int32_t i = 0; i < num_events && !::testing::Test::HasFailure(); ++i) {
      DrawEvent(totals);
      TakeEvents();
      Check();
    }
    if (!::testing::Test::HasFailure()) {
      Drain(totals);
    }
  }

 private:
  struct Live {
    std::vector<TokenId> token_ids;
    bool is_beam = false;  // its tokens come with the end of the search; other tests look at them
    bool is_finished = false;
  };

  void Check() {
    EXPECT_EQ(cache_events_.Apply(core_->TakeCacheEvents(), limits_.block_size_tokens), "");
    if (++num_events_ % profile_.check_interval == 0) {
      core_.untimed().CheckInvariants();
      EXPECT_EQ(cache_events_.Compare(
                    core_.untimed().cached_hashes(), bypassing_, limits_.block_size_tokens),
                "");
    }
    EXPECT_EQ(core_.Fault(), "");
  }

  void DrawEvent(Totals& totals) {
    if (random_.OneIn(6)) {
      AddRequest();
    } else if (random_.OneIn(15)) {
      Pin(totals);
    } else if (random_.OneIn(25)) {
      Unpin(totals);
    } else if (random_.OneIn(20)) {
      core_->AbortRequest(RequestId(static_cast<uint64_t>(random_.Between(1, 1 + LastId()))));
    } else if (!worker_.has_value()) {
      BeginEpoch(totals);
    } else if (random_.OneIn(profile_.loss_rate)) {
      core_->OnWorkersLost();
      worker_.reset();
      plan_.reset();
    } else if (plan_.has_value()) {
      Apply(/*may_fail=*/true);
    } else {
      plan_ = core_->PlanStep(0);
    }
  }

  int32_t LastId() const { return static_cast<int32_t>(next_id_) - 1; }
  std::vector<TokenId> Beginning() {
    const std::vector<TokenId>& text =
        texts_[static_cast<size_t>(random_.Below(static_cast<int32_t>(texts_.size())))];
    return {text.begin(), text.begin() + random_.Between(1, profile_.text_tokens - 1)};
  }

  void AddRequest() {
    Request request{.id = RequestId(next_id_), .prompt_token_ids = Beginning()};
    request.num_sequences = random_.Between(1, 3);
    request.max_tokens = random_.Between(1, 30);
    request.sampling.seed = next_id_;
    request.cache_salt = random_.OneIn(4) ? "salt" : "";
    request.bypasses_prefix_cache = random_.OneIn(8);
    if (random_.OneIn(4) && !request.bypasses_prefix_cache) {
      const int32_t num_beams = random_.Between(request.num_sequences, 4);
      request.beam_search = {.num_beams = num_beams};
      request.sampling.num_logprobs = num_beams;
    }
    const Live live{.token_ids = request.prompt_token_ids,
                    .is_beam = request.beam_search.has_value()};
    const int32_t num_sequences = request.num_sequences;
    const uint64_t id = next_id_++;
    RequestModel model = {.request = request,
                          .sequences = std::vector<SequenceModel>(
                              static_cast<size_t>(num_sequences),
                              SequenceModel{.token_ids = request.prompt_token_ids})};
    if (core_->AddRequest(std::move(request)) == AddOutcome::kQueued) {
      if (model.request.bypasses_prefix_cache) {
        bypassing_.emplace(id, std::move(model));
      }
      for (int32_t index = 0; index < num_sequences; ++index) {
        live_[{id, index}] = live;
      }
    }
  }

  void PinAll(Totals& totals) {
    BeginEpoch(totals);
    for (const std::vector<TokenId>& text : texts_) {
      const PinResult result = core_->PinPrefix(RequestId(next_id_++), text, "");
      totals.num_pinned += result.outcome == PinOutcome::kAccepted ? 1 : 0;
    }
    EXPECT_EQ(core_.Fault(), "");
  }

  void Pin(Totals& totals) {
    const PinResult result = core_->PinPrefix(
        RequestId(next_id_++), Beginning(), random_.OneIn(4) ? "salt" : std::string());
    const bool is_pinned = result.outcome == PinOutcome::kAccepted;
    totals.num_pinned += is_pinned ? 1 : 0;
    totals.num_refused +=
        result.outcome == PinOutcome::kExceedsShare || result.outcome == PinOutcome::kStarvesRequest
            ? 1
            : 0;
  }

  void Unpin(Totals& totals) {
    const std::vector<PrefixInfo> prefixes = core_->prefixes();
    if (prefixes.empty()) {
      EXPECT_FALSE(core_->UnpinPrefix(RequestId(next_id_)));
      return;
    }
    const auto index = static_cast<size_t>(random_.Below(static_cast<int32_t>(prefixes.size())));
    EXPECT_TRUE(core_->UnpinPrefix(prefixes[index].id));
    ++totals.num_unpinned;
  }

  void BeginEpoch(Totals& totals) {
    if (profile_.limits.has_value()) {
      limits_ = *profile_.limits;
    } else if (limits_.num_blocks == 0 || random_.OneIn(2)) {
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
    core_->BeginEpoch(1, ++group_epoch_, limits_);
    ++totals.num_epochs;
    for (const PrefixInfo& info : core_->prefixes()) {
      totals.num_waiting_for_room += info.state == PrefixState::kWaiting ? 1 : 0;
    }
  }

  void Apply(bool may_fail) {
    auto result = worker_->Execute(*plan_);
    ASSERT_TRUE(result.ok()) << result.status();
    for (SampledToken& sampled : result->sampled) {
      sampled.finite = !may_fail || !random_.OneIn(40);
    }
    ASSERT_TRUE(core_->ApplyStepResult(*result).ok());
    plan_.reset();
  }

  void TakeEvents() {
    for (const OutputEvent& event : core_->TakeEvents()) {
      if (const auto* token = std::get_if<TokenCommitted>(&event)) {
        Live& live = live_.at({token->request_id.value(), token->sequence_index});
        EXPECT_TRUE(live.is_beam || token->token_id == ExpectedToken(live.token_ids,
                                                                     token->request_id.value(),
                                                                     token->sequence_index,
                                                                     kVocabSize,
                                                                     sliding_window_));
        live.token_ids.push_back(token->token_id);
        if (const auto model = bypassing_.find(token->request_id.value());
            model != bypassing_.end()) {
          model->second.sequences[static_cast<size_t>(token->sequence_index)].token_ids =
              live.token_ids;
        }
      } else {
        const auto& finished = std::get<SequenceFinished>(event);
        live_.at({finished.request_id.value(), finished.sequence_index}).is_finished = true;
      }
    }
  }

  void Drain(Totals& totals) {
    int32_t num_steps_left = 20'000;
    while (!::testing::Test::HasFailure() &&
           (core_->has_work() || plan_.has_value() || !worker_.has_value()) &&
           num_steps_left-- > 0) {
      if (!worker_.has_value()) {
        BeginEpoch(totals);
      } else if (plan_.has_value()) {
        Apply(/*may_fail=*/false);
      } else {
        plan_ = core_->PlanStep(0);
      }
      TakeEvents();
      Check();
    }
    EXPECT_GT(num_steps_left, 0) << "everything ends";
    for (const auto& [key, live] : live_) {
      EXPECT_TRUE(live.is_finished) << "request " << key.first;
    }
    CoreStats stats = core_->stats();
    EXPECT_EQ(stats.num_used_blocks, stats.num_pinned_blocks);
    EXPECT_LE(stats.num_pinned_blocks, 0.8 * stats.num_blocks);
    totals.num_preemptions += stats.num_preemptions;
    totals.num_hits += stats.num_prefix_hit_tokens;
    for (const PrefixInfo& info : core_->prefixes()) {
      EXPECT_NE(info.state, PrefixState::kComputing);
      EXPECT_TRUE(core_->UnpinPrefix(info.id));
    }
    core_.untimed().CheckInvariants();
    stats = core_->stats();
    EXPECT_EQ(stats.num_free_blocks, stats.num_blocks) << "nothing is held any more";
    EXPECT_EQ(stats.num_stored_tokens, 0);
  }

  const Profile profile_;
  Random random_;
  Timed<SchedulerCore> core_;
  const int32_t sliding_window_;
  std::vector<std::vector<TokenId>> texts_;
  std::optional<FakeWorker> worker_;
  StepLimits limits_;
  std::optional<StepPlan> plan_;
  std::map<std::pair<uint64_t, int32_t>, Live> live_;
  RequestModels bypassing_;  // requests whose blocks no event may tell of
  CacheEventAudit cache_events_{CoreConfig{.prefix_caching = true}};
  uint64_t group_epoch_ = 0;
  uint64_t next_id_ = 1;
  int32_t num_events_ = 0;
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

// The loop's thread calls the core: all streams stand still meanwhile.
TEST(PinnedPrefixesRandomTest, ManyLongPrefixesMakeNoCallLong) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(seed);
    PrefixHistory(seed, kManyLong).Run(60, totals);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GE(totals.num_pinned, 2 * 256);
  EXPECT_GT(totals.num_epochs, 6);
}

}  // namespace
}  // namespace quire
