// Histories of the random simulation are recorded and replayed. Run one seed alone, or more seeds,
// with QUIRE_SEED=<seed> and QUIRE_NUM_SEEDS=<n>.
#include "scheduler/step_log/replay.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/step_log/field_codec.h"
#include "scheduler/step_log/recorded_core.h"
#include "tests/scheduler/core/core_simulation.h"
#include "tests/scheduler/step_log/memory_log.h"
#include "tests/support/fake_worker.h"
#include "tests/support/random.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr int32_t kEventsPerSeed = 400;
constexpr uint64_t kNumSeeds = 1000;

uint64_t NumberFromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

// The log of a simulated history, and what happened in it.
struct History {
  std::string log;
  CoreStats totals;
};

History Simulate(uint64_t seed) {
  MemoryLog log;
  CoreSimulation simulation(seed, {.sink = &log, .program_version = "test"});
  EXPECT_EQ(simulation.Run(kEventsPerSeed), "") << "QUIRE_SEED=" << seed;
  EXPECT_EQ(simulation.Drain(), "") << "QUIRE_SEED=" << seed;
  return {.log = std::move(log.bytes), .totals = simulation.totals()};
}

TEST(ReplayTest, RandomHistoriesReplayToIdenticalPlansAndOutput) {
  const uint64_t first = NumberFromEnvironment("QUIRE_SEED", 1);
  const uint64_t num_seeds = NumberFromEnvironment("QUIRE_NUM_SEEDS", kNumSeeds);
  CoreStats sum;
  int64_t num_losses = 0;
  for (uint64_t seed = first; seed < first + num_seeds; ++seed) {
    const History history = Simulate(seed);

    const ReplayReport report = ReplayBytes(history.log);

    ASSERT_TRUE(report.damage.ok()) << "QUIRE_SEED=" << seed << " " << report.damage;
    ASSERT_EQ(report.difference, "") << "QUIRE_SEED=" << seed;
    ASSERT_FALSE(report.is_torn);
    ASSERT_EQ(report.num_tokens, history.totals.num_tokens_committed) << "QUIRE_SEED=" << seed;
    ASSERT_EQ(report.num_requests, history.totals.num_requests_finished) << "QUIRE_SEED=" << seed;
    num_losses += report.num_epochs - 1;
    sum.num_swap_preemptions += history.totals.num_swap_preemptions;
    sum.num_blocks_copied += history.totals.num_blocks_copied;
    sum.num_prefix_hit_tokens += history.totals.num_prefix_hit_tokens;
    sum.num_recomputed_tokens += history.totals.num_recomputed_tokens;
  }
  // A history in which something never happens proves nothing about it.
  EXPECT_TRUE(num_seeds < kNumSeeds || num_losses > 100) << num_losses;
  EXPECT_TRUE(num_seeds < kNumSeeds || sum.num_swap_preemptions > 100);
  EXPECT_TRUE(num_seeds < kNumSeeds || sum.num_blocks_copied > 100);
  EXPECT_TRUE(num_seeds < kNumSeeds || sum.num_prefix_hit_tokens > 1000);
  EXPECT_TRUE(num_seeds < kNumSeeds || sum.num_recomputed_tokens > 1000);
}

// One request of eight tokens prompt and six of output, two of which it has when it comes, on a
// worker that answers.
class ReplayMutationTest : public testing::Test {
 protected:
  ReplayMutationTest() {
    const StepLimits limits{.num_blocks = 20,
                            .block_size_tokens = 4,
                            .max_sequences = 4,
                            .max_tokens_per_step = 16,
                            .max_model_len = 64,
                            .vocab_size = 100};
    MemoryLog log;
    RecordedCore core({}, {.sink = &log, .program_version = "test"});
    FakeWorker worker(limits);
    core.BeginEpoch(1, 1, limits, /*after_crash=*/false);
    Request request = MakeRequest({.id = 1, .prompt = 8, .max_tokens = 6}, 100);
    request.is_resumed = true;
    request.resumed = {{.token_ids = {17, 18}}};
    core.AddRequest(request);
    while (std::optional<StepPlan> plan = core.PlanStep(++now_)) {
      EXPECT_TRUE(core.ApplyStepResult(worker.Execute(*plan).value()).ok());
      core.TakeEvents();
    }
    records_ = RecordsOf(log.bytes);
  }

  // The place of the n-th record of a kind.
  template <typename T>
  size_t Place(int n = 0) const {
    for (size_t i = 0; i < records_.size(); ++i) {
      if (std::holds_alternative<T>(records_[i]) && n-- == 0) {
        return i;
      }
    }
    ADD_FAILURE() << "no such record";
    return 0;
  }
  void Remove(size_t place) { records_.erase(records_.begin() + static_cast<int64_t>(place)); }
  ReplayReport Replayed() const { return ReplayBytes(LogOf(records_)); }

  Instant now_ = 0;
  std::vector<StepLogRecord> records_;
};

TEST_F(ReplayMutationTest, TheRecordsAsTheyWereAreIdentical) {
  const ReplayReport report = Replayed();

  EXPECT_TRUE(report.is_identical()) << report.damage << report.difference;
  EXPECT_EQ(report.num_steps, 4);
  EXPECT_EQ(report.num_requests, 1);
  EXPECT_EQ(report.num_epochs, 1);
  EXPECT_EQ(report.num_tokens, 4);
}

TEST_F(ReplayMutationTest, AnotherResumedTokenGivesAnotherPlan) {
  std::get<Request>(records_[Place<Request>()]).resumed[0].token_ids[1] = 19;

  EXPECT_THAT(Replayed().difference, HasSubstr("the plan differs after 1 steps"));
}

// Its length was promised, so the context does not shorten it.
TEST_F(ReplayMutationTest, ARequestThatIsResumedIsReplayedAsOne) {
  Request& request = std::get<Request>(records_[Place<Request>()]);
  request.resumed.clear();
  request.max_tokens = 60;

  EXPECT_THAT(Replayed().difference, HasSubstr("the answer of the core differs after 0 steps"));
}

TEST_F(ReplayMutationTest, AnotherPromptTokenGivesAnotherPlan) {
  std::get<Request>(records_[Place<Request>()]).prompt_token_ids[3] ^= 1;

  const ReplayReport report = Replayed();

  EXPECT_TRUE(report.damage.ok());
  EXPECT_THAT(report.difference, HasSubstr("the plan differs after 1 steps"));
  EXPECT_THAT(report.difference, HasSubstr("step 1 of epoch 1"));
}

TEST_F(ReplayMutationTest, AnotherSeedGivesAnotherPlan) {
  ++std::get<Request>(records_[Place<Request>()]).sampling.seed;

  EXPECT_THAT(Replayed().difference, HasSubstr("the plan differs"));
}

TEST_F(ReplayMutationTest, AnotherSampledTokenGivesOtherOutput) {
  std::get<StepResult>(records_[Place<StepResult>(2)]).sampled[0].token_id ^= 1;

  EXPECT_THAT(Replayed().difference, HasSubstr("the output differs after 3 steps"));
}

TEST_F(ReplayMutationTest, ARequestThatIsMissingIsFound) {
  Remove(Place<Request>() + 1);  // its answer, which would be one without a call
  Remove(Place<Request>());

  EXPECT_THAT(Replayed().difference, HasSubstr("the plan differs after 0 steps"));
}

TEST_F(ReplayMutationTest, AnAnswerThatIsMissingIsNoPossibleHistory) {
  Remove(Place<StepResult>(1) + 1);
  Remove(Place<StepResult>(1));

  EXPECT_FALSE(Replayed().is_identical());
}

TEST_F(ReplayMutationTest, AnAbortThatNobodyAskedForIsFound) {
  records_.insert(records_.begin() + static_cast<int64_t>(Place<PlanStepCalled>(3)),
                  RequestAborted{RequestId(1)});

  EXPECT_FALSE(Replayed().is_identical());
}

TEST_F(ReplayMutationTest, AnotherPoolGivesOtherBlocks) {
  std::get<EpochBegun>(records_[Place<EpochBegun>()]).limits.block_size_tokens = 2;

  EXPECT_THAT(Replayed().difference, HasSubstr("the plan differs after 1 steps"));
}

TEST_F(ReplayMutationTest, ATornLogReplaysAsFarAsItGoes) {
  const std::string bytes = LogOf(records_);

  const ReplayReport report = ReplayBytes(bytes.substr(0, bytes.size() - 5));

  EXPECT_TRUE(report.is_identical());
  EXPECT_TRUE(report.is_torn);
  EXPECT_EQ(report.num_records, static_cast<int64_t>(records_.size()) - 1);
}

TEST_F(ReplayMutationTest, EventsThatTheCoreWouldNotSurviveAreDamage) {
  const std::vector<StepLogRecord> good = records_;
  const auto expect_damage = [&](StepLogRecord bad, size_t place) {
    records_ = good;
    records_.insert(records_.begin() + static_cast<int64_t>(place), std::move(bad));
    const ReplayReport report = Replayed();
    EXPECT_EQ(report.damage.code(), absl::StatusCode::kDataLoss) << report.damage;
  };
  const Request request = MakeRequest({.id = 2});

  expect_damage(CoreConfig{}, 3);                  // twice
  expect_damage(WorkersLost{}, 0);                 // no core yet
  expect_damage(CoreConfig{.watermark = 1.0}, 0);  // no fraction
  expect_damage(CoreConfig{.priority_ageing = -1}, 0);
  expect_damage(CoreConfig{.target_inter_token = -1}, 0);
  expect_damage(EpochBegun{.limits = {.num_blocks = 20}}, 2);      // one is active
  expect_damage(PlanStepCalled{.now = 9}, Place<PlanMade>() + 1);  // one is unanswered
  expect_damage(CallResult{}, 1);                                  // of no call
  expect_damage(PlanMade{}, 1);                                    // of no call
  expect_damage(MakeRequest({.id = 1}), Place<PlanStepCalled>());  // the number is taken
  expect_damage(Request{.id = RequestId(2)}, Place<PlanStepCalled>());
  Request none = request;
  none.num_sequences = 0;
  expect_damage(none, Place<PlanStepCalled>());
  Request endless = request;
  endless.max_tokens = 0;
  expect_damage(endless, Place<PlanStepCalled>());
  Request beams = request;
  beams.beam_search = BeamOptions{.num_beams = 0};
  expect_damage(beams, Place<PlanStepCalled>());
  Request ended = request;
  ended.is_resumed = true;
  ended.resumed = {{.token_ids = {}, .has_ended = true}};
  expect_damage(ended, Place<PlanStepCalled>());
  records_ = good;
  std::get<EpochBegun>(records_[Place<EpochBegun>()]).limits.num_blocks = 0;
  EXPECT_FALSE(Replayed().damage.ok());
}

// The record with a bit of one of its bytes changed, if that makes a record.
template <typename T>
T WithOtherBit(const T& record, Random& random) {
  ByteWriter out;
  Put(record, out);
  std::string bytes(out.bytes());
  if (!bytes.empty()) {
    const auto place = static_cast<size_t>(random.Below(static_cast<int32_t>(bytes.size())));
    bytes[place] = static_cast<char>(bytes[place] ^ (1 << random.Below(7)));
  }
  ByteReader in(bytes);
  T changed{};
  Get(in, changed);
  return in.ok() ? changed : record;
}

void Forge(std::vector<StepLogRecord>& records, Random& random) {
  const auto any = [&] {
    return records.begin() + random.Below(static_cast<int32_t>(records.size()));
  };
  switch (random.Below(4)) {
    case 0:
      records.erase(any());
      break;
    case 1: {
      StepLogRecord copy = *any();
      records.insert(any(), std::move(copy));
      break;
    }
    case 2:
      std::iter_swap(any(), any());
      break;
    default:
      auto place = any();
      *place = std::visit(
          [&random](const auto& record) { return StepLogRecord(WithOtherBit(record, random)); },
          *place);
  }
}

// Records are changed, doubled, dropped and moved. No replay crashes.
TEST(ReplayRandomTest, ForgedLogsDoNoHarm) {
  int num_told_apart = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    std::vector<StepLogRecord> records = RecordsOf(Simulate(1 + seed % 40).log);
    for (int i = random.Between(1, 4); i > 0; --i) {
      Forge(records, random);
    }

    const ReplayReport report = ReplayBytes(LogOf(records));

    num_told_apart += report.is_identical() ? 0 : 1;
  }
  EXPECT_GT(num_told_apart, 300);
}

}  // namespace
}  // namespace quire
