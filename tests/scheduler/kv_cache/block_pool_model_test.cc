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

// The blocks of a page are consecutive. A page is whole if all of them are free.
class PoolModel {
 public:
  PoolModel(int32_t num_blocks, int32_t blocks_per_page)
      : num_blocks_(num_blocks), blocks_per_page_(blocks_per_page) {
    for (BlockId block_id = 1; block_id < num_blocks; ++block_id) {
      EnterFree(block_id);
    }
  }

  // The page behind the first num_kept whole ones, else the first one; -1 if none is whole.
  BlockId NextPage(int32_t num_kept) const {
    const auto index = static_cast<size_t>(num_kept);
    return whole_.empty() ? -1 : index < whole_.size() ? whole_[index] : whole_.front();
  }

  BlockId NextOf(int32_t num_kept, const std::vector<BlockId>& table) const {
    const auto offset = static_cast<BlockId>(table.size()) % blocks_per_page_;
    const BlockId follower = table.empty() ? 0 : table.back() + 1;
    if (offset > 0 && table.back() > 0 && follower % blocks_per_page_ == offset &&
        IsFree(follower)) {
      return follower;
    }
    const BlockId page = NextPage(num_kept);
    return page < 0 ? loose_.front() : page * blocks_per_page_ + offset;
  }

  bool Allocate(int32_t num_kept, int32_t n, std::vector<BlockId>& out) {
    if (n > static_cast<int32_t>(free().size())) {
      return false;
    }
    for (int32_t i = 0; i < n; ++i) {
      const BlockId block_id = NextOf(num_kept, out);
      LeaveFree(block_id);
      references_[block_id] = 1;
      out.push_back(block_id);
    }
    return true;
  }

  std::vector<BlockId> NextPages(int32_t num_kept, int32_t n) const {
    const auto num_before = std::min(whole_.size(), static_cast<size_t>(num_kept));
    std::vector<BlockId> next(whole_.begin() + static_cast<std::ptrdiff_t>(num_before),
                              whole_.end());
    next.insert(next.end(), whole_.begin(), whole_.end());
    next.resize(std::min(whole_.size(), static_cast<size_t>(n)));
    for (BlockId& page : next) {
      page *= blocks_per_page_;
    }
    return next;
  }

  void Touch(BlockId block_id) {
    if (IsFree(block_id)) {
      LeaveFree(block_id);
    }
    std::erase(pending_, block_id);
    ++references_[block_id];
  }

  void Free(BlockId block_id) {
    if (--references_[block_id] > 0) {
      return;
    }
    references_.erase(block_id);
    if (is_fenced_) {
      pending_.push_back(block_id);
    } else {
      EnterFree(block_id);
    }
  }

  void RaiseFence() { is_fenced_ = true; }

  void LowerFence() {
    for (const BlockId block_id : pending_) {
      EnterFree(block_id);
    }
    pending_.clear();
    is_fenced_ = false;
  }

  bool is_fenced() const { return is_fenced_; }
  const std::map<BlockId, int32_t>& references() const { return references_; }
  std::vector<BlockId> free() const {
    std::vector<BlockId> blocks;
    for (const BlockId page : whole_) {
      const std::vector<BlockId> ids = BlocksOf(page);
      blocks.insert(blocks.end(), ids.begin(), ids.end());
    }
    blocks.insert(blocks.end(), loose_.begin(), loose_.end());
    return blocks;
  }
  const std::deque<BlockId>& pending() const { return pending_; }
  int32_t num_whole_pages() const { return static_cast<int32_t>(whole_.size()); }

 private:
  std::vector<BlockId> BlocksOf(BlockId page) const {
    std::vector<BlockId> ids;
    for (int32_t i = 0; i < blocks_per_page_; ++i) {
      ids.push_back(page * blocks_per_page_ + i);
    }
    return ids;
  }

  bool IsFree(BlockId block_id) const {
    return block_id > 0 && block_id < num_blocks_ && references_.count(block_id) == 0 &&
           std::count(pending_.begin(), pending_.end(), block_id) == 0;
  }

  // Called before the block has a reference.
  void LeaveFree(BlockId block_id) {
    const BlockId page = block_id / blocks_per_page_;
    if (std::erase(whole_, page) > 0) {
      std::vector<BlockId> ids = BlocksOf(page);
      loose_.insert(loose_.end(), ids.rbegin(), ids.rend());
    }
    std::erase(loose_, block_id);
  }

  void EnterFree(BlockId block_id) {
    loose_.push_back(block_id);
    const std::vector<BlockId> ids = BlocksOf(block_id / blocks_per_page_);
    const auto is_loose = [this](BlockId id) {
      return std::find(loose_.begin(), loose_.end(), id) != loose_.end();
    };
    if (std::all_of(ids.begin(), ids.end(), is_loose)) {
      std::erase_if(loose_, [&ids](BlockId id) { return id >= ids.front() && id <= ids.back(); });
      whole_.push_back(block_id / blocks_per_page_);
    }
  }

  int32_t num_blocks_;
  int32_t blocks_per_page_;
  std::map<BlockId, int32_t> references_;
  std::deque<BlockId> whole_;  // pages
  std::deque<BlockId> loose_;  // free blocks of other pages
  std::deque<BlockId> pending_;
  bool is_fenced_ = false;
};

void ExpectEqual(const BlockPool& pool, const PoolModel& model) {
  ASSERT_EQ(pool.FreeListForTest(), model.free());
  ASSERT_EQ(pool.num_whole_pages(), model.num_whole_pages());
  for (const int32_t num_kept : {0, 4, pool.num_blocks()}) {
    for (const int32_t n : {0, 3, pool.num_blocks()}) {
      std::vector<BlockId> next = {-7};  // PeekBehind must append
      pool.PeekBehind(num_kept, n, next);
      next.erase(next.begin());
      ASSERT_EQ(next, model.NextPages(num_kept, n));
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

// tables: lists of blocks to which allocations append. Some of the blocks may have been freed.
void DoRandomOperation(BlockPool& pool,
                       PoolModel& model,
                       std::vector<std::vector<BlockId>>& tables,
                       Random& random) {
  int32_t kind = random.Below(10);
  if (kind < 4) {
    int32_t n = random.Below(4);
    std::vector<BlockId>& got = tables[static_cast<size_t>(random.Below(3))];
    if (random.OneIn(4)) {
      got.assign(static_cast<size_t>(random.Below(3)), kNullBlockId);
    }
    std::vector<BlockId> expected = got;
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
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int32_t blocks_per_page = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 2 : 8;
    int32_t num_blocks = random.Between(1, 20 * (blocks_per_page == 8 ? 3 : 1));
    BlockPool pool(num_blocks, blocks_per_page);
    PoolModel model(num_blocks, blocks_per_page);
    std::vector<std::vector<BlockId>> tables(3);

    for (int32_t i = 0; i < 1000; ++i) {
      DoRandomOperation(pool, model, tables, random);
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
