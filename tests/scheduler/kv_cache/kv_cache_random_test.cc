// Random operations on a KvCacheManager; a seed determines each world. A failure names the seed.
// Run one seed with QUIRE_SEED=<seed> <test>, and more operations with QUIRE_NUM_OPERATIONS=<n>.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/scheduler/kv_cache/kv_cache_world.h"
#include "tests/support/crash_note.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr int64_t kNumOperations = 300'000;
constexpr int32_t kOperationsPerSeed = 1000;

int64_t NumberFromEnvironment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return text == nullptr ? fallback : std::strtoll(text, nullptr, 10);
}

enum Operation : uint8_t {
  kAppend,
  kFork,
  kFree,
  kSwapOut,
  kSwapIn,
  kSwapsDone,
  kSlideWindow,
  kPublish,
  kUnpublish,
  kShareCached,
  kStep,
  kWorkersLost,
  kNumKinds,
};

// Number of times that each operation was allowed and done.
using Counts = std::vector<int64_t>;

class RandomWorld {
 public:
  // The analyzer takes members of standard containers for uninitialized.
  // NOLINTNEXTLINE(clang-analyzer-optin.cplusplus.UninitializedObject)
  explicit RandomWorld(uint64_t seed) : random_(seed), sizes_(Draw(random_)), world_(sizes_) {}

  std::string Run(Counts& counts) {
    std::string fault;
    for (int32_t i = 0; i < kOperationsPerSeed && fault.empty(); ++i) {
      const Operation operation = DrawOperation();
      counts[operation] += Do(operation) ? 1 : 0;
      fault = world_.Check();
    }
    return fault;
  }

 private:
  static KvCacheWorld::Sizes Draw(Random& random) {
    return {.num_blocks = random.Between(2, random.OneIn(2) ? 8 : 40),
            .num_host_blocks = random.Between(0, random.OneIn(2) ? 4 : 30),
            .block_size_tokens = 1 << random.Below(4),
            .num_sequences = static_cast<size_t>(random.Between(2, 7)),
            .sliding_window = random.OneIn(3) ? random.Between(1, 20) : 0,
            .blocks_per_page = random.OneIn(2) ? 1 : 1 << random.Below(4)};
  }

  Operation DrawOperation() {
    // Most steps append; workers are lost rarely.
    const int32_t draw = random_.Below(100);
    if (draw < 30) {
      return kAppend;
    }
    return draw == 99 && random_.OneIn(3) ? kWorkersLost
                                          : static_cast<Operation>(random_.Between(kFork, kStep));
  }

  size_t AnySequence() { return static_cast<size_t>(random_.Below(Size())); }
  int32_t Size() const { return static_cast<int32_t>(sizes_.num_sequences); }

  std::vector<TokenId> DrawTokens() {
    std::vector<TokenId> tokens(static_cast<size_t>(random_.Between(1, 10)));
    for (TokenId& token_id : tokens) {
      token_id = random_.OneIn(6) ? 1 : 0;  // two values, so that many sequences share a prefix
    }
    return tokens;
  }

  std::vector<size_t> DrawGroup() {
    std::vector<size_t> group = {AnySequence()};
    if (const size_t other = AnySequence(); other != group.front() && random_.OneIn(2)) {
      group.push_back(other);
    }
    return group;
  }

  // Returns the contents of some sequence with more tokens, sometimes under the other salt.
  KvCacheWorld::Contents DrawContents() {
    KvCacheWorld::Contents contents = world_.contents(AnySequence());
    const std::vector<TokenId> more = DrawTokens();
    contents.token_ids.insert(contents.token_ids.end(), more.begin(), more.end());
    contents.salt = random_.OneIn(4) ? 1 - contents.salt : contents.salt;
    return contents;
  }

  bool Do(Operation operation) {
    const size_t sequence = AnySequence();
    switch (operation) {
      case kAppend:
        return world_.Append(sequence, random_.Below(2), DrawTokens());
      case kFork: {
        const auto num_tokens = static_cast<int32_t>(world_.contents(sequence).token_ids.size());
        return num_tokens > 0 &&
               world_.Fork(sequence, random_.Between(1, num_tokens), AnySequence());
      }
      case kFree:
        return random_.OneIn(2) && world_.Free(sequence);
      case kSwapOut:
        return world_.SwapOut(DrawGroup());
      case kSwapIn:
        return world_.SwapIn(DrawGroup());
      case kSwapsDone:
        return world_.SwapsDone(world_.num_steps() -
                                std::min<uint64_t>(world_.num_steps(), random_.Next() % 3));
      case kSlideWindow:
        return world_.SlideWindow(sequence);
      case kPublish:
        return world_.Publish(sequence);
      case kUnpublish:
        return random_.OneIn(8) && world_.Unpublish(sequence);
      case kShareCached:
        return world_.ShareCached(sequence, DrawContents());
      case kStep:
        return world_.StepPlanned() || world_.StepAnswered();
      case kWorkersLost:
        return world_.WorkersLost();
      case kNumKinds:
        break;
    }
    return false;
  }

  Random random_;
  KvCacheWorld::Sizes sizes_;
  KvCacheWorld world_;
};

TEST(KvCacheRandomTest, TablesLeadToTheirTokensThroughRandomOperations) {
  const bool is_one_seed = std::getenv("QUIRE_SEED") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  const int64_t num_operations =
      NumberFromEnvironment("QUIRE_NUM_OPERATIONS", is_one_seed ? 1 : kNumOperations);
  const auto first_seed = static_cast<uint64_t>(NumberFromEnvironment("QUIRE_SEED", 1));
  Counts counts(kNumKinds, 0);
  int64_t num_done = 0;
  uint64_t num_worlds = 0;
  for (uint64_t seed = first_seed; num_done < num_operations; ++seed) {
    SetCrashNote("QUIRE_SEED=" + std::to_string(seed));
    RandomWorld world(seed);

    const std::string fault = world.Run(counts);

    ASSERT_EQ(fault, "") << "QUIRE_SEED=" << seed;
    num_done = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    ++num_worlds;
  }
  SetCrashNote("");
  std::printf("%llu worlds, %lld operations, of each kind:",
              static_cast<unsigned long long>(num_worlds),
              static_cast<long long>(num_done));
  for (int64_t count : counts) {
    std::printf(" %lld", static_cast<long long>(count));
    // A run that rarely does an operation tests it too little.
    EXPECT_TRUE(is_one_seed || count > kNumOperations / 400) << count;
  }
  std::printf("\n");
}

}  // namespace
}  // namespace quire
