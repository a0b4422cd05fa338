// Small-scope exhaustive check: every history of up to kDepth operations on 3 blocks of 2 tokens
// and 2 sequences. Small faults show in small worlds; here none is left out.
//
// Every state is reached by replaying its history on fresh objects, so nothing has to be copied.
// Histories that lead to a state seen before at the same or a greater depth left are not followed
// again: the state is everything that the classes remember.
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/kv_cache/kv_cache_manager.h"

namespace quire {
namespace {

constexpr int32_t kNumBlocks = 4;  // with the null block
constexpr int32_t kBlockSize = 2;
constexpr int32_t kDepth = 14;

enum class Operation : uint8_t {
  kAppend1A,
  kAppend1B,
  kAppend3A,
  kAppend3B,
  kForkAToB,
  kForkBToA,
  kFreeA,
  kFreeB,
  kStepPlanned,
  kStepAnswered,
  kWorkersLost,
  kCount,
};

struct World {
  KvCacheManager manager{BlockPool(kNumBlocks), kBlockSize};
  BlockTable tables[2];

  std::string Fingerprint() const {
    std::string text = manager.pool().is_fenced() ? "F" : "f";
    for (BlockId block_id : manager.pool().FreeListForTest()) {
      text += static_cast<char>('0' + block_id);
    }
    for (const BlockTable& table : tables) {
      text += '|';
      text += std::to_string(table.num_tokens());
      text += ':';
      for (BlockId block_id : table.block_ids()) {
        text += static_cast<char>('0' + block_id);
      }
    }
    // Which of the remaining blocks are pending, and in which order, shows when the fence falls;
    // the copy is how a test looks at it.
    BlockPool pool = manager.pool();
    if (pool.is_fenced()) {
      pool.LowerFence();
      for (BlockId block_id : pool.FreeListForTest()) {
        text += static_cast<char>('0' + block_id);
      }
    }
    return text;
  }
};

bool MayWrite(const World& world, const BlockTable& table) {
  return table.num_tokens() % kBlockSize == 0 ||
         world.manager.pool().ref_count(table.block_ids().back()) == 1;
}

// False when the operation is not allowed here. Checks what Append and Free promise.
bool Apply(World& world, Operation operation) {
  auto append = [&world](BlockTable& table, int32_t num_tokens) {
    if (!MayWrite(world, table)) {
      return false;
    }
    int32_t num_free = world.manager.num_free_blocks();
    int32_t num_needed = world.manager.NumBlocksToAppend(table, num_tokens);
    bool has_room = world.manager.Append(table, num_tokens).has_value();
    EXPECT_EQ(has_room, num_needed <= num_free);
    EXPECT_EQ(world.manager.num_free_blocks(), has_room ? num_free - num_needed : num_free);
    return true;
  };
  auto fork = [&world](const BlockTable& parent, BlockTable& child) {
    if (parent.empty() || !child.empty()) {
      return false;
    }
    world.manager.Fork(parent, parent.num_tokens(), child);
    return true;
  };
  auto free = [&world](BlockTable& table) {
    if (table.empty()) {
      return false;
    }
    world.manager.Free(table);
    return true;
  };
  bool is_fenced = world.manager.pool().is_fenced();
  switch (operation) {
    case Operation::kAppend1A:
      return append(world.tables[0], 1);
    case Operation::kAppend1B:
      return append(world.tables[1], 1);
    case Operation::kAppend3A:
      return append(world.tables[0], 3);
    case Operation::kAppend3B:
      return append(world.tables[1], 3);
    case Operation::kForkAToB:
      return fork(world.tables[0], world.tables[1]);
    case Operation::kForkBToA:
      return fork(world.tables[1], world.tables[0]);
    case Operation::kFreeA:
      return free(world.tables[0]);
    case Operation::kFreeB:
      return free(world.tables[1]);
    case Operation::kStepPlanned:
      return is_fenced ? false : (world.manager.OnStepPlanned(), true);
    case Operation::kStepAnswered:
      return is_fenced ? (world.manager.OnStepAnswered(), true) : false;
    case Operation::kWorkersLost:
      world.tables[0].Abandon();
      world.tables[1].Abandon();
      world.manager = KvCacheManager(BlockPool(kNumBlocks), kBlockSize);
      return true;
    case Operation::kCount:
      break;
  }
  return false;
}

void Check(const World& world) {
  const BlockTable* tables[] = {&world.tables[0], &world.tables[1]};
  world.manager.CheckInvariants(tables);

  // A block that only one of them holds is in one place of one table; shared blocks are a common
  // prefix, at the same logical index in both.
  for (int32_t i = 0; i < world.tables[0].num_blocks(); ++i) {
    for (int32_t j = 0; j < world.tables[1].num_blocks(); ++j) {
      if (world.tables[0][i] == world.tables[1][j]) {
        ASSERT_EQ(i, j);
      }
    }
  }
}

class Explorer {
 public:
  void Explore(std::vector<Operation>& history) {
    World world;
    for (Operation operation : history) {
      Apply(world, operation);
    }
    Check(world);
    ++num_states_;
    auto depth_left = static_cast<int32_t>(kDepth - history.size());
    int32_t& explored = explored_depth_[world.Fingerprint()];
    if (depth_left <= explored || testing::Test::HasFailure()) {
      return;
    }
    explored = depth_left;
    for (uint8_t next = 0; next < static_cast<uint8_t>(Operation::kCount); ++next) {
      World probe;
      for (Operation operation : history) {
        Apply(probe, operation);
      }
      if (Apply(probe, static_cast<Operation>(next))) {
        history.push_back(static_cast<Operation>(next));
        Explore(history);
        history.pop_back();
      }
    }
  }

  size_t num_distinct() const { return explored_depth_.size(); }
  int64_t num_states() const { return num_states_; }

 private:
  std::map<std::string, int32_t> explored_depth_;
  int64_t num_states_ = 0;
};

TEST(KvCacheExhaustiveTest, EveryShortHistoryKeepsTheInvariants) {
  Explorer explorer;
  std::vector<Operation> history;

  explorer.Explore(history);

  std::printf("%lld histories, %zu distinct states\n",
              static_cast<long long>(explorer.num_states()),
              explorer.num_distinct());
  EXPECT_GT(explorer.num_distinct(), 500U);
}

}  // namespace
}  // namespace quire
