// Small-scope exhaustive check: every history of up to kDepth operations on 3 blocks and 2 host
// blocks of 2 tokens and 2 sequences with a common prefix. Most faults show in small worlds.
//
// Every state is reached by replaying its history in a fresh world, so that worlds need no copying.
// Histories that lead to a state seen at the same or a smaller depth are not extended.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/scheduler/kv_cache/kv_cache_world.h"

namespace quire {
namespace {

// With pages of two blocks, 1 and 8 lie in pages that are never whole.
KvCacheWorld::Sizes SizesWith(int32_t sliding_window, int32_t blocks_per_page) {
  return {.num_blocks = blocks_per_page == 1 ? 4 : 9,
          .num_host_blocks = 2,
          .block_size_tokens = 2,
          .num_sequences = 2,
          .sliding_window = sliding_window,
          .blocks_per_page = blocks_per_page};
}
constexpr int32_t kDepth = 9;

using History = std::vector<size_t>;  // indices into kOperations

// The first block of both sequences has equal contents, the others differ.
std::vector<TokenId> TokensOf(const KvCacheWorld& world, size_t sequence, size_t num_tokens) {
  std::vector<TokenId> tokens;
  const size_t begin = world.contents(sequence).token_ids.size();
  for (size_t position = begin; position < begin + num_tokens; ++position) {
    tokens.push_back(position < 2 ? 7 : static_cast<TokenId>(sequence));
  }
  return tokens;
}

bool Append(KvCacheWorld& world, size_t sequence, size_t num_tokens) {
  return world.Append(sequence, 0, TokensOf(world, sequence, num_tokens));
}

bool Fork(KvCacheWorld& world, size_t parent) {
  const auto num_tokens = static_cast<int32_t>(world.contents(parent).token_ids.size());
  return world.Fork(parent, num_tokens, 1 - parent);
}

bool ShareCached(KvCacheWorld& world, size_t sequence) {
  return world.ShareCached(sequence, {.token_ids = TokensOf(world, sequence, 5)});
}

using WorldOperation = bool (*)(KvCacheWorld& world);

constexpr WorldOperation kOperations[] = {
    [](KvCacheWorld& world) { return Append(world, 0, 1); },
    [](KvCacheWorld& world) { return Append(world, 1, 1); },
    [](KvCacheWorld& world) { return Append(world, 0, 3); },
    [](KvCacheWorld& world) { return Append(world, 1, 3); },
    [](KvCacheWorld& world) { return Fork(world, 0); },
    [](KvCacheWorld& world) { return Fork(world, 1); },
    [](KvCacheWorld& world) { return world.Free(0); },
    [](KvCacheWorld& world) { return world.Free(1); },
    [](KvCacheWorld& world) { return world.SwapOut(std::vector<size_t>{0}); },
    [](KvCacheWorld& world) { return world.SwapOut(std::vector<size_t>{1}); },
    [](KvCacheWorld& world) {
      return world.SwapOut(std::vector<size_t>{0, 1});
    },
    [](KvCacheWorld& world) { return world.SwapIn(std::vector<size_t>{0}); },
    [](KvCacheWorld& world) { return world.SwapIn(std::vector<size_t>{1}); },
    [](KvCacheWorld& world) {
      return world.SwapIn(std::vector<size_t>{0, 1});
    },
    [](KvCacheWorld& world) { return world.SwapsDone(world.num_steps()); },
    [](KvCacheWorld& world) {
      return world.num_steps() > 0 && world.SwapsDone(world.num_steps() - 1);
    },
    [](KvCacheWorld& world) { return world.SlideWindow(0); },
    [](KvCacheWorld& world) { return world.SlideWindow(1); },
    [](KvCacheWorld& world) { return world.Publish(0); },
    [](KvCacheWorld& world) { return world.Publish(1); },
    [](KvCacheWorld& world) { return world.Unpublish(0); },
    [](KvCacheWorld& world) { return ShareCached(world, 0); },
    [](KvCacheWorld& world) { return ShareCached(world, 1); },
    [](KvCacheWorld& world) { return world.StepPlanned(); },
    [](KvCacheWorld& world) { return world.StepAnswered(); },
    [](KvCacheWorld& world) { return world.WorkersLost(); },
};

// Searches breadth first, so that a state is first seen at its smallest depth.
class Explorer {
 public:
  explicit Explorer(const KvCacheWorld::Sizes& sizes) : sizes_(sizes) {}

  // Returns "", or the fault and its history.
  std::string Explore(int32_t max_depth) {
    std::vector<History> reached = {{}};
    for (int32_t depth = 0; depth < max_depth && !reached.empty(); ++depth) {
      std::vector<History> next;
      for (const History& history : reached) {
        std::string fault = ExploreFrom(history, next);
        if (!fault.empty()) {
          return fault;
        }
      }
      reached = std::move(next);
    }
    return "";
  }

  size_t num_distinct() const { return seen_.size(); }
  int64_t num_histories() const { return num_histories_; }

 private:
  std::string ExploreFrom(const History& history, std::vector<History>& next) {
    for (size_t operation = 0; operation < std::size(kOperations); ++operation) {
      KvCacheWorld world(sizes_);
      for (size_t earlier : history) {
        kOperations[earlier](world);
      }
      if (!kOperations[operation](world)) {
        continue;
      }
      ++num_histories_;
      History longer = history;
      longer.push_back(operation);
      if (const std::string fault = world.Check(); !fault.empty()) {
        std::string text = fault + ", after operations";
        for (size_t each : longer) {
          text += ' ';
          text += std::to_string(each);
        }
        return text;
      }
      if (seen_.insert(std::hash<std::string>()(world.Fingerprint())).second) {
        next.push_back(std::move(longer));
      }
    }
    return "";
  }

  const KvCacheWorld::Sizes sizes_;
  std::unordered_set<size_t> seen_;  // hashes: a few million fingerprints would not fit into memory
  int64_t num_histories_ = 0;
};

// QUIRE_DEPTH=<n> sets another depth; each level about doubles the histories.
void ExploreWith(int32_t sliding_window, int32_t blocks_per_page = 1, int32_t max_depth = kDepth) {
  const char* depth = std::getenv("QUIRE_DEPTH");  // NOLINT(concurrency-mt-unsafe)
  Explorer explorer(SizesWith(sliding_window, blocks_per_page));

  EXPECT_EQ(explorer.Explore(depth == nullptr ? max_depth : std::atoi(depth)), "");

  std::printf("%lld histories, %zu distinct states\n",
              static_cast<long long>(explorer.num_histories()),
              explorer.num_distinct());
  EXPECT_TRUE(depth != nullptr || explorer.num_distinct() > 20'000U);
}

TEST(KvCacheExhaustiveTest, EveryShortHistoryKeepsTheInvariants) { ExploreWith(0); }

TEST(KvCacheExhaustiveTest, EveryShortHistoryKeepsTheInvariantsBehindASlidingWindow) {
  ExploreWith(3);
}

TEST(KvCacheExhaustiveTest, EveryShortHistoryKeepsTheInvariantsWithPagesOfTwoBlocks) {
  ExploreWith(0, /*blocks_per_page=*/2, kDepth - 2);  // the larger pool has more states
}

}  // namespace
}  // namespace quire
