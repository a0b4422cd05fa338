// Compares BlockPool with a model made of ordinary containers, through random operations.
#include <algorithm>
#include <cstddef>
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

  // Behind the first num_kept free blocks, then from the front.
  std::vector<BlockId> Next(int32_t num_kept, int32_t n) const {
    const auto num_before = std::min(free_.size(), static_cast<size_t>(num_kept));
    std::vector<BlockId> next(free_.begin() + static_cast<std::ptrdiff_t>(num_before), free_.end());
    next.insert(next.end(), free_.begin(), free_.end());
    next.resize(std::min(free_.size(), static_cast<size_t>(n)));
    return next;
  }

  bool Allocate(int32_t num_kept, int32_t n, std::vector<BlockId>& out) {
    if (static_cast<size_t>(n) > free_.size()) {
      return false;
    }
    for (const BlockId block_id : Next(num_kept, n)) {
      out.push_back(block_id);
      references_[block_id] = 1;
      std::erase(free_, block_id);
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
  for (const int32_t num_kept : {0, 4, pool.num_blocks()}) {
    for (const int32_t n : {0, 3, pool.num_blocks()}) {
      std::vector<BlockId> next = {-7};  // PeekBehind must append
      pool.PeekBehind(num_kept, n, next);
      next.erase(next.begin());
      ASSERT_EQ(next, model.Next(num_kept, n));
    }
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
    const int32_t num_kept = random.OneIn(2) ? 0 : random.Below(8);
    ASSERT_EQ(num_kept == 0 ? pool.Allocate(n, got) : pool.AllocateBehind(num_kept, n, got),
              model.Allocate(num_kept, n, expected));
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
