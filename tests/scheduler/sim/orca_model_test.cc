// The reserving policies against a second implementation, written from the paper's text and from
// the definition of buddies over a plain map of slots, step by step.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/sim/simulation.h"
#include "tests/support/random.h"

namespace quire {
namespace {

struct PlainSequence {
  SimRequest request;  // that it belongs to
  int32_t begin = -1;  // of its run; -1: waits or has ended
  int32_t length = 0;
  int32_t num_made = 0;
  Instant finished = -1;
};

class PlainOrca {
 public:
  PlainOrca(const SimConfig& config, const Trace& trace)
      : config_(config), cost_(config.platform, kContiguous) {
    for (const SimRequest& request : trace.requests) {
      sequences_.insert(sequences_.end(), GroupSize(), {.request = request});
    }
  }

  std::vector<Instant> Run() {
    Instant now = 0;
    while (num_finished_ < sequences_.size()) {
      Admit(now);
      const StepWork work = Work();
      if (work.num_sequences == 0) {
        now = sequences_[next_].request.arrival;
        continue;
      }
      now += std::llround(cost_.StepSeconds(work) * 1e9);
      Advance(now);
    }
    std::vector<Instant> finished;
    for (size_t i = 0; i < sequences_.size(); i += GroupSize()) {
      finished.push_back(sequences_[i].finished);  // all of a request end together
    }
    return finished;
  }

 private:
  bool IsFree(int32_t begin, int32_t length) const {
    return begin + length <= config_.platform.num_kv_slots() &&
           std::none_of(sequences_.begin(), sequences_.end(), [&](const PlainSequence& r) {
             return r.begin >= 0 && r.begin < begin + length && begin < r.begin + r.length;
           });
  }

  int32_t Place(int32_t wanted) const {
    for (int32_t length = wanted; length <= config_.platform.num_kv_slots(); length *= 2) {
      for (int32_t begin = 0; begin <= config_.platform.num_kv_slots(); begin += length) {
        if (IsFree(begin, length) && !IsFree(begin / (2 * length) * 2 * length, 2 * length)) {
          return begin;
        }
      }
    }
    return -1;
  }

  int32_t Wanted(const SimRequest& request) const {
    int32_t slots = config_.max_model_len;
    if (config_.policy == MemoryPolicy::kOrcaPow2) {
      int32_t output = 1;
      while (output < request.output_tokens) {
        output *= 2;
      }
      slots = std::min(slots, request.prompt_tokens + output);
    } else if (config_.policy == MemoryPolicy::kOrcaOracle) {
      slots = request.prompt_tokens + request.output_tokens;
    }
    int32_t power = 1;
    while (power < slots) {
      power *= 2;
    }
    return power;
  }

  size_t GroupSize() const {
    return static_cast<size_t>(std::max(config_.num_sequences, config_.num_beams));
  }

  // All sequences of the next request, or none.
  bool PlaceNext() {
    for (size_t i = next_; i < next_ + GroupSize(); ++i) {
      sequences_[i].length = Wanted(sequences_[i].request);
      sequences_[i].begin = Place(sequences_[i].length);
      if (sequences_[i].begin < 0) {
        for (; i > next_; --i) {
          sequences_[i - 1].begin = -1;
        }
        return false;
      }
    }
    return true;
  }

  void Admit(Instant now) {
    size_t num_running = 0;
    for (const PlainSequence& r : sequences_) {
      num_running += r.begin >= 0 ? 1 : 0;
    }
    size_t num_tokens = num_running;
    while (next_ < sequences_.size() && sequences_[next_].request.arrival <= now) {
      num_running += GroupSize();
      num_tokens += GroupSize() * static_cast<size_t>(sequences_[next_].request.prompt_tokens);
      if (num_running > static_cast<size_t>(config_.max_sequences) ||
          num_tokens > static_cast<size_t>(config_.max_tokens_per_step) || !PlaceNext()) {
        return;
      }
      next_ += GroupSize();
    }
  }

  StepWork Work() const {
    StepWork work;
    for (const PlainSequence& r : sequences_) {
      if (r.begin >= 0) {
        ++work.num_sequences;
        work.num_tokens += r.num_made == 0 ? r.request.prompt_tokens : 1;
        work.num_context_tokens += r.request.prompt_tokens + r.num_made;
      }
    }
    return work;
  }

  void Advance(Instant now) {
    for (PlainSequence& r : sequences_) {
      if (r.begin >= 0 && ++r.num_made == r.request.output_tokens) {
        r.begin = -1;
        r.finished = now;
        ++num_finished_;
      }
    }
  }

  SimConfig config_;
  CostModel cost_;
  std::vector<PlainSequence> sequences_;  // those of a request lie together
  size_t next_ = 0;                       // the first that has not begun
  size_t num_finished_ = 0;
};

// A small pool and a trace that overloads it.
struct Workload {
  Workload(Random& random, MemoryPolicy policy, int32_t group_size) {
    config = {.platform = *FindPlatform("a100-opt-13b"), .policy = policy};
    const int32_t num_slots = group_size * random.Between(64, 200);
    config.platform.kv_pool_bytes =
        static_cast<double>(num_slots * config.platform.model.kv_bytes_per_token());
    config.max_model_len = 32;
    config.max_sequences = group_size * random.Between(1, 9) + random.Below(group_size);
    config.max_tokens_per_step = group_size * random.Between(20, 60);
    (random.OneIn(2) ? config.num_sequences : config.num_beams) = group_size;
    Instant arrival = 0;
    for (int i = 0; i < 40; ++i) {
      arrival += random.OneIn(8) ? kNanosPerSecond : random.Below(40) * kNanosPerMilli;
      trace.requests.push_back({.arrival = arrival,
                                .prompt_tokens = random.Between(1, 16),
                                .output_tokens = random.Between(1, 16)});
    }
  }

  SimConfig config;
  Trace trace;
};

class OrcaModelTest : public testing::TestWithParam<MemoryPolicy> {};

TEST_P(OrcaModelTest, EveryRequestFinishesAtTheVeryNanosecond) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    for (int32_t group_size : {1, 2, 5}) {
      const Workload workload(random, GetParam(), group_size);

      absl::StatusOr<SimResult> result = RunSimulation(workload.config, workload.trace);

      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->finished, PlainOrca(workload.config, workload.trace).Run())
          << "seed " << seed << ", sequences " << group_size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies,
                         OrcaModelTest,
                         testing::Values(MemoryPolicy::kOrcaMax,
                                         MemoryPolicy::kOrcaPow2,
                                         MemoryPolicy::kOrcaOracle),
                         [](const auto& i) {
                           std::string name(NameOf(i.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quire
