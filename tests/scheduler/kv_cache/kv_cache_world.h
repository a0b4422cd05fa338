// KvCacheWorld is a KvCacheManager with its environment: sequences with known tokens, a memory on
// which its copies are executed, and a model of the prefix cache made of ordinary containers. After
// every operation the block tables must lead to each sequence's own tokens, and the manager must
// agree with the model.
//
// Swap-outs are copied as late as the manager allows: when they are reported as done, or when their
// host block is swapped in. So reusing a block too early shows in the tokens.
//
// An operation that is not allowed in the current state does nothing and returns false.
//
// Thread safety: for tests, one thread. A fault ends the world: no operation may follow.
#ifndef QUIRE_TESTS_SCHEDULER_KV_CACHE_KV_CACHE_WORLD_H_
#define QUIRE_TESTS_SCHEDULER_KV_CACHE_KV_CACHE_WORLD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "scheduler/kv_cache/kv_cache_manager.h"

namespace quire {

class KvCacheWorld {
 public:
  struct Sizes {
    int32_t num_blocks = 2;  // null block included
    int32_t num_host_blocks = 0;
    int32_t block_size_tokens = 2;
    size_t num_sequences = 2;
    int32_t sliding_window = 0;  // tokens; 0: no window
    int32_t blocks_per_page = 1;
  };

  // The contents of a sequence. Only contents of equal salt are shared through the cache.
  struct Contents {
    int32_t salt = 0;
    std::vector<TokenId> token_ids;

    // Not "= default": clang-tidy 14 takes the comparison with 0 for a null pointer.
    friend bool operator<(const Contents& a, const Contents& b) {
      return std::tie(a.salt, a.token_ids) < std::tie(b.salt, b.token_ids);
    }
  };

  explicit KvCacheWorld(const Sizes& sizes);

  // Sequences are named by index. Append copies a shared tail first; salt is for an empty sequence.
  bool Append(size_t index, int32_t salt, std::span<const TokenId> token_ids);
  bool Fork(size_t parent, int32_t num_tokens, size_t child);
  bool Free(size_t index);  // on the device or on the host
  bool SwapOut(std::span<const size_t> indices);
  bool SwapIn(std::span<const size_t> indices);
  bool SwapsDone(uint64_t step_id);
  bool SlideWindow(size_t index);  // takes all its tokens as computed
  bool Publish(size_t index);
  bool Unpublish(size_t index);
  // Begins an empty sequence with the cached prefix of these contents, less the last token. Moves
  // the end of the prefix to a page of its own if the manager can, and then plans the step.
  bool ShareCached(size_t index, const Contents& wanted);
  bool StepPlanned();
  bool StepAnswered();
  bool WorkersLost();

  // Returns "" or the first fault. May follow any operation.
  const std::string& Check();

  const Contents& contents(size_t index) const { return sequences_[index].contents; }
  bool is_empty(size_t index) const { return sequences_[index].contents.token_ids.empty(); }
  bool is_swapped(size_t index) const { return !sequences_[index].host_table.empty(); }
  uint64_t num_steps() const { return step_id_; }

  // Returns a text of the whole state: equal fingerprints have equal futures.
  std::string Fingerprint() const;

 private:
  struct Sequence {
    Contents contents;
    BlockTable table;
    HostTable host_table;
    uint64_t swapped_in_step = 0;  // step of its last swap, in either direction
  };
  struct SwapUnderWay {
    uint64_t step_id = 0;
    SwappedBlock copy;
    bool is_copied = false;
  };
  using Cell = uint64_t;  // stands for K and V of a token: a hash of it and all tokens before it

  KvCacheManager MakeManager() const;
  void MoveToOwnPage(BlockTable& table);
  int32_t NumPassedBlocks(int32_t num_tokens) const;
  std::vector<SwapTables> TablesOf(std::span<const size_t> indices);
  std::vector<BlockHash> HashesOf(const Contents& contents, size_t num_blocks) const;
  Contents Beginning(const Contents& contents, size_t num_blocks) const;
  // Returns true if the sequence is swapped in the step being planned: a scheduler neither frees it
  // nor swaps it again in that step.
  bool IsMoving(size_t index) const { return sequences_[index].swapped_in_step == step_id_ + 1; }
  // IsWholeGroup returns true if no other sequence shares a partly filled block with one of these:
  // such blocks are shared only within a group, which is swapped as a whole.
  bool SharesPartlyFilledBlock(const Sequence& a, const Sequence& b) const;
  bool IsWholeGroup(std::span<const size_t> indices) const;
  PrefixMatch ModelMatch(const Contents& contents, size_t num_blocks) const;
  void HandOut(BlockId block_id);  // drops it from listed_: its contents change
  int32_t NumHolders(BlockId block_id) const;
  BlockState StateOf(BlockId block_id) const;
  void CopyOut(SwapUnderWay& swap);
  void Expect(bool condition, const char* what);
  void CheckContents(const Sequence& sequence);
  void CheckCounts();

  const Sizes sizes_;
  KvCacheManager manager_;
  std::vector<Sequence> sequences_;
  std::vector<std::vector<Cell>> memory_;       // [num_blocks][block_size_tokens]
  std::vector<std::vector<Cell>> host_memory_;  // [num_host_blocks][block_size_tokens]
  std::map<Contents, BlockId> listed_;  // model of the cache, by all tokens up to the block's end
  std::deque<SwapUnderWay> leaving_;
  std::deque<SwapUnderWay> arriving_;
  std::set<BlockId> published_now_;  // in the step being planned
  uint64_t step_id_ = 0;
  std::string fault_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_KV_CACHE_KV_CACHE_WORLD_H_
