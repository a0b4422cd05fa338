// Compares BlockPool with a model made of ordinary containers, through random operations.
#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/kv_cache/block_pool.h"
#include "tests/support/random.h"

namespace quire {
namespace {

class PoolModel {
 public:
  explicit PoolModel(int32_t num_blocks) {
    for (BlockId block_id = 1; block_id < num_blocks; ++block_id) {
      free_.push_back(block_id);
    }
  }

  bool Allocate(int32_t n, std::vector<BlockId>& out) {
    if (static_cast<size_t>(n) > free_.size()) {
      return false;
    }
    for (int32_t i = 0; i < n; ++i) {
      out.push_back(free_.front());
      references_[free_.front()] = 1;
      free_.pop_front();
    }
    return true;
  }

  void Touch(BlockId block_id) {
    std::erase(free_, block_id);
    std::erase(pending_, block_id);
    ++references_[block_id];
  }

  void Free(BlockId block_id) {
    if (--references_[block_id] == 0) {
      references_.erase(block_id);
      (is_fenced_ ? pending_ : free_).push_back(block_id);
    }
  }

  void RaiseFence() { is_fenced_ = true; }

  void LowerFence() {
    free_.insert(free_.end(), pending_.begin(), pending_.end());
    pending_.clear();
    is_fenced_ = false;
  }

  bool is_fenced() const { return is_fenced_; }
  const std::map<BlockId, int32_t>& references() const { return references_; }
  const std::deque<BlockId>& free() const { return free_; }
  const std::deque<BlockId>& pending() const { return pending_; }

 private:
  std::map<BlockId, int32_t> references_;
  std::deque<BlockId> free_;
  std::deque<BlockId> pending_;
  bool is_fenced_ = false;
};

void ExpectEqual(const BlockPool& pool, const PoolModel& model) {
  std::vector<BlockId> expected_free(model.free().begin(), model.free().end());
  ASSERT_EQ(pool.FreeListForTest(), expected_free);
  for (const int32_t n : {0, 3, pool.num_blocks()}) {
    std::vector<BlockId> next = {-7};  // PeekFree must append
    pool.PeekFree(n, next);
    const auto num_expected = std::min(expected_free.size(), static_cast<size_t>(n));
    ASSERT_EQ(next.size(), 1 + num_expected);
    ASSERT_TRUE(std::equal(next.begin() + 1, next.end(), expected_free.begin()));
  }
  ASSERT_EQ(pool.num_pending_blocks(), static_cast<int32_t>(model.pending().size()));
  ASSERT_EQ(pool.num_used_blocks(), static_cast<int32_t>(model.references().size()));
  for (BlockId block_id = 1; block_id < pool.num_blocks(); ++block_id) {
    auto it = model.references().find(block_id);
    ASSERT_EQ(pool.ref_count(block_id), it == model.references().end() ? 0 : it->second);
  }
}

BlockId AnyReferenced(const PoolModel& model, Random& random) {
  auto it = model.references().begin();
  std::advance(it, random.Below(static_cast<int32_t>(model.references().size())));
  return it->first;
}

void DoRandomOperation(BlockPool& pool, PoolModel& model, Random& random) {
  int32_t kind = random.Below(10);
  if (kind < 4) {
    int32_t n = random.Below(4);
    std::vector<BlockId> got;
    std::vector<BlockId> expected;
    ASSERT_EQ(pool.Allocate(n, got), model.Allocate(n, expected));
    ASSERT_EQ(got, expected);
  } else if (kind < 7 && !model.references().empty()) {
    BlockId block_id = AnyReferenced(model, random);
    pool.Free(block_id);
    model.Free(block_id);
  } else if (kind < 9 && pool.num_usable_blocks() > 0) {
    BlockId block_id = random.Between(1, pool.num_usable_blocks());
    pool.Touch(block_id);
    model.Touch(block_id);
  } else if (kind == 9) {
    model.is_fenced() ? pool.LowerFence() : pool.RaiseFence();
    model.is_fenced() ? model.LowerFence() : model.RaiseFence();
  }
}

TEST(BlockPoolModelTest, BehavesLikeOrdinaryContainers) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    int32_t num_blocks = random.Between(1, 20);
    BlockPool pool(num_blocks);
    PoolModel model(num_blocks);

    for (int32_t i = 0; i < 1000; ++i) {
      DoRandomOperation(pool, model, random);
      pool.CheckInvariants();
      ExpectEqual(pool, model);
      if (testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }
}

}  // namespace
}  // namespace quire
