#include "tests/scheduler/kv_cache/kv_cache_world.h"

#include <algorithm>
#include <set>
#include <utility>

namespace quire {
namespace {

constexpr Hash128 kKey = {.low = 11, .high = 13};

uint64_t CellAfter(uint64_t before, TokenId token_id) {
  uint64_t word = (before + static_cast<uint64_t>(token_id) + 1) * 0x9E3779B97F4A7C15ULL;
  return word ^ (word >> 29);
}

}  // namespace

KvCacheWorld::KvCacheWorld(const Sizes& sizes)
    : sizes_(sizes),
      manager_(MakeManager()),
      sequences_(sizes.num_sequences),
      memory_(static_cast<size_t>(sizes.num_blocks),
              std::vector<Cell>(static_cast<size_t>(sizes.block_size_tokens))),
      host_memory_(static_cast<size_t>(sizes.num_host_blocks),
                   std::vector<Cell>(static_cast<size_t>(sizes.block_size_tokens))) {}

KvCacheManager KvCacheWorld::MakeManager() const {
  return {BlockPool(sizes_.num_blocks, sizes_.blocks_per_page),
          sizes_.block_size_tokens,
          sizes_.num_host_blocks,
          sizes_.sliding_window};
}

// Does not use the production's helper, in order to check it.
int32_t KvCacheWorld::NumPassedBlocks(int32_t num_tokens) const {
  int32_t num_passed = 0;
  const int32_t window = sizes_.sliding_window;
  // The next token, at position num_tokens, attends to itself and to window - 1 tokens before it.
  while (window > 0 && (num_passed + 1) * sizes_.block_size_tokens <= num_tokens - window + 1) {
    ++num_passed;
  }
  return num_passed;
}

bool KvCacheWorld::Append(size_t index, int32_t salt, std::span<const TokenId> token_ids) {
  Sequence& sequence = sequences_[index];
  BlockTable& table = sequence.table;
  const auto num_new = static_cast<int32_t>(token_ids.size());
  const int32_t num_free = manager_.num_free_blocks();
  const int32_t num_needed = manager_.NumBlocksToAppend(table, num_new);
  const bool takes_copy = manager_.IsTailShared(table);
  if (is_swapped(index) || num_new == 0 || (takes_copy && num_needed + 1 > num_free)) {
    return false;
  }
  if (const auto copy = manager_.MakeTailExclusive(table)) {
    HandOut(copy->dst);
    memory_[static_cast<size_t>(copy->dst)] = memory_[static_cast<size_t>(copy->src)];
  }
  const int32_t num_blocks_before = table.num_blocks();
  const bool is_tail_written = table.num_tokens() % sizes_.block_size_tokens != 0;
  const auto new_blocks = manager_.Append(table, num_new);
  Expect(new_blocks.has_value() == (num_needed <= num_free), "Append takes what is free");
  if (!new_blocks.has_value()) {
    Expect(manager_.num_free_blocks() == num_free, "Append takes all or nothing");
    return true;
  }
  std::for_each(new_blocks->begin(), new_blocks->end(), [this](BlockId id) { HandOut(id); });
  if (is_tail_written) {
    HandOut(table.block_ids()[static_cast<size_t>(num_blocks_before) - 1]);
  }
  if (sequence.contents.token_ids.empty()) {
    sequence.contents.salt = salt;
  }
  Cell cell = 0;
  std::vector<TokenId>& known = sequence.contents.token_ids;
  for (TokenId token_id : known) {
    cell = CellAfter(cell, token_id);
  }
  for (TokenId token_id : token_ids) {
    cell = CellAfter(cell, token_id);
    const auto position = static_cast<int32_t>(known.size());
    const BlockId block_id = table[position / sizes_.block_size_tokens];
    const auto offset = static_cast<size_t>(position % sizes_.block_size_tokens);
    memory_[static_cast<size_t>(block_id)][offset] = cell;
    known.push_back(token_id);
  }
  return true;
}

bool KvCacheWorld::Fork(size_t parent, int32_t num_tokens, size_t child) {
  const std::vector<TokenId>& tokens = sequences_[parent].contents.token_ids;
  if (is_empty(parent) || is_swapped(parent) || !is_empty(child) || num_tokens < 1 ||
      num_tokens > static_cast<int32_t>(tokens.size()) ||
      sequences_[parent].table.num_passed_blocks() > NumPassedBlocks(num_tokens)) {
    return false;
  }
  manager_.Fork(sequences_[parent].table, num_tokens, sequences_[child].table);
  sequences_[child].contents = {.salt = sequences_[parent].contents.salt,
                                .token_ids = {tokens.begin(), tokens.begin() + num_tokens}};
  return true;
}

bool KvCacheWorld::Free(size_t index) {
  if (is_empty(index) || IsMoving(index)) {
    return false;
  }
  Sequence& sequence = sequences_[index];
  is_swapped(index) ? manager_.Free(sequence.host_table) : manager_.Free(sequence.table);
  Expect(sequence.table.empty() && sequence.host_table.empty(), "Free empties the table");
  sequence.contents = {};
  return true;
}

bool KvCacheWorld::SwapOut(std::span<const size_t> indices) {
  std::set<BlockId> blocks;
  for (size_t index : indices) {
    if (is_empty(index) || is_swapped(index) || IsMoving(index)) {
      return false;
    }
    const std::span<const BlockId> ids = sequences_[index].table.block_ids();
    blocks.insert(ids.begin(), ids.end());
    blocks.erase(kNullBlockId);
  }
  if (manager_.pool().is_fenced() || !IsWholeGroup(indices)) {
    return false;  // swaps are ordered when a step is planned
  }
  for (const SwapUnderWay& swap : leaving_) {
    if (swap.step_id == step_id_ + 1) {
      blocks.erase(swap.copy.block);  // another group swaps it out in the same step
    }
  }
  const int32_t num_free = manager_.host_pool().num_free_blocks();
  std::vector<SwappedBlock> orders;
  const bool has_room = manager_.SwapOut(TablesOf(indices), step_id_ + 1, orders);
  Expect(has_room == (static_cast<int32_t>(blocks.size()) <= num_free), "swaps what has room");
  Expect(orders.size() == (has_room ? blocks.size() : 0), "each shared block is copied once");
  for (size_t index : indices) {
    sequences_[index].swapped_in_step = has_room ? step_id_ + 1 : 0;
  }
  for (const SwappedBlock& copy : orders) {
    leaving_.push_back({.step_id = step_id_ + 1, .copy = copy});
  }
  return true;
}

bool KvCacheWorld::SwapIn(std::span<const size_t> indices) {
  for (size_t index : indices) {
    if (!is_swapped(index) || IsMoving(index)) {
      return false;
    }
  }
  const std::vector<SwapTables> tables = TablesOf(indices);
  const SwapInNeed need = manager_.NeedToSwapIn(tables);
  const int32_t num_free = manager_.num_free_blocks();
  if (manager_.pool().is_fenced() || !IsWholeGroup(indices)) {
    return false;
  }
  std::vector<SwappedBlock> orders;
  const bool has_room = manager_.SwapIn(tables, step_id_ + 1, orders);
  Expect(has_room || need.num_blocks > num_free, "swaps in what has room");
  Expect(static_cast<int32_t>(orders.size()) <= need.num_blocks, "takes no more than it says");
  Expect(manager_.num_free_blocks() == num_free - static_cast<int32_t>(orders.size()),
         "takes a block for each order");
  for (size_t index : indices) {
    sequences_[index].swapped_in_step = has_room ? step_id_ + 1 : 0;
  }
  for (const SwappedBlock& copy : orders) {
    HandOut(copy.block);
    for (SwapUnderWay& swap : leaving_) {
      if (swap.copy.host_block == copy.host_block) {
        CopyOut(swap);
      }
    }
    memory_[static_cast<size_t>(copy.block)] = host_memory_[static_cast<size_t>(copy.host_block)];
    arriving_.push_back({.step_id = step_id_ + 1, .copy = copy});
  }
  return true;
}

bool KvCacheWorld::SwapsDone(uint64_t step_id) {
  if (step_id > step_id_ || (leaving_.empty() && arriving_.empty())) {
    return false;
  }
  for (; !leaving_.empty() && leaving_.front().step_id <= step_id; leaving_.pop_front()) {
    CopyOut(leaving_.front());
  }
  while (!arriving_.empty() && arriving_.front().step_id <= step_id) {
    arriving_.pop_front();
  }
  manager_.OnSwapsDone(step_id);
  return true;
}

void KvCacheWorld::CopyOut(SwapUnderWay& swap) {
  if (!swap.is_copied) {
    host_memory_[static_cast<size_t>(swap.copy.host_block)] =
        memory_[static_cast<size_t>(swap.copy.block)];
    swap.is_copied = true;
  }
}

bool KvCacheWorld::Publish(size_t index) {
  const Sequence& sequence = sequences_[index];
  const auto num_full =
      sequence.contents.token_ids.size() / static_cast<size_t>(sizes_.block_size_tokens);
  if (is_swapped(index) || num_full == 0) {
    return false;
  }
  const int32_t num_passed = sequence.table.num_passed_blocks();
  manager_.Publish(sequence.table, num_passed, HashesOf(sequence.contents, num_full));
  for (auto i = static_cast<size_t>(num_passed); i < num_full; ++i) {
    const Contents key = Beginning(sequence.contents, i + 1);
    const BlockId block_id = sequence.table.block_ids()[i];
    published_now_.insert(block_id);
    const auto listed = listed_.find(key);
    if (listed != listed_.end() && NumHolders(listed->second) == 0) {
      listed_.erase(listed);
    }
    const bool is_listed =
        std::any_of(listed_.begin(), listed_.end(), [block_id](const auto& entry) {
          return entry.second == block_id;
        });
    if (!is_listed) {
      listed_.emplace(key, block_id);
    }
  }
  return true;
}

bool KvCacheWorld::Unpublish(size_t index) {
  const Sequence& sequence = sequences_[index];
  if (sequence.table.empty()) {
    return false;
  }
  const size_t num_full =
      sequence.contents.token_ids.size() / static_cast<size_t>(sizes_.block_size_tokens);
  manager_.Unpublish(sequence.table, /*first_block=*/0, HashesOf(sequence.contents, num_full));
  const std::span<const BlockId> block_ids = sequence.table.block_ids();
  for (size_t i = 0; i < block_ids.size(); ++i) {
    if (block_ids[i] == kNullBlockId) {
      listed_.erase(Beginning(sequence.contents, i + 1));
    } else {
      HandOut(block_ids[i]);
    }
  }
  return true;
}

bool KvCacheWorld::SlideWindow(size_t index) {
  Sequence& sequence = sequences_[index];
  if (sizes_.sliding_window == 0 || is_empty(index) || is_swapped(index) || IsMoving(index)) {
    return false;
  }
  const auto num_tokens = static_cast<int32_t>(sequence.contents.token_ids.size());
  manager_.SlideWindow(sequence.table, num_tokens);
  Expect(sequence.table.num_passed_blocks() == NumPassedBlocks(num_tokens), "passes the window");
  return true;
}

bool KvCacheWorld::ShareCached(size_t index, const Contents& wanted) {
  if (!is_empty(index) || wanted.token_ids.empty()) {
    return false;
  }
  const size_t num_blocks =
      (wanted.token_ids.size() - 1) / static_cast<size_t>(sizes_.block_size_tokens);
  const std::vector<BlockHash> hashes = HashesOf(wanted, num_blocks);
  const PrefixMatch match = manager_.Match(hashes);
  const PrefixMatch expected = ModelMatch(wanted, num_blocks);
  Expect(match.num_blocks == expected.num_blocks, "finds what is listed");
  Expect(match.num_held_blocks == expected.num_held_blocks, "counts what is held");
  if (match.num_blocks == 0 || !fault_.empty()) {
    return !fault_.empty();  // true: the operation was allowed, but found a fault
  }
  const auto num_found = static_cast<size_t>(match.num_blocks);
  manager_.ShareCached(std::span(hashes).first(num_found), sequences_[index].table);
  sequences_[index].contents = Beginning(wanted, num_found);
  if (!manager_.pool().is_fenced() && manager_.NumBlocksToMove(sequences_[index].table) > 0) {
    MoveToOwnPage(sequences_[index].table);
    StepPlanned();
  }
  return true;
}

void KvCacheWorld::MoveToOwnPage(BlockTable& table) {
  const int32_t num_free = manager_.num_free_blocks();
  const int32_t num_moved = manager_.NumBlocksToMove(table);
  std::vector<CopiedBlock> copies;
  manager_.MoveToOwnPage(table, copies);
  Expect(static_cast<int32_t>(copies.size()) == num_moved &&
             num_moved == table.num_blocks() % sizes_.blocks_per_page &&
             manager_.num_free_blocks() == num_free - num_moved,
         "moves the blocks of the last page");
  const int32_t first = table.num_blocks() - num_moved;
  for (int32_t i = 0; i < num_moved; ++i) {
    const CopiedBlock& copy = copies[static_cast<size_t>(i)];
    Expect(copy.dst == table[first + i] && copy.dst % sizes_.blocks_per_page == i,
           "lays a page's blocks out in order");
    Expect(manager_.pool().ref_count(copy.src) > 0, "keeps what is copied");
    Expect(published_now_.count(copy.src) == 0, "copies only what was computed before");
    HandOut(copy.dst);
    memory_[static_cast<size_t>(copy.dst)] = memory_[static_cast<size_t>(copy.src)];
  }
  Expect(manager_.NumBlocksToMove(table) == 0, "a moved table can grow");
}

bool KvCacheWorld::StepPlanned() {
  if (manager_.pool().is_fenced()) {
    return false;
  }
  ++step_id_;
  manager_.OnStepPlanned();
  published_now_.clear();
  return true;
}

bool KvCacheWorld::StepAnswered() {
  if (!manager_.pool().is_fenced()) {
    return false;
  }
  manager_.OnStepAnswered();
  return true;
}

bool KvCacheWorld::WorkersLost() {
  for (Sequence& sequence : sequences_) {
    sequence.table.Abandon();
    sequence.host_table.Abandon();
    sequence.contents = {};
    sequence.swapped_in_step = 0;
  }
  manager_ = MakeManager();
  published_now_.clear();
  listed_.clear();
  leaving_.clear();
  arriving_.clear();
  step_id_ = 0;
  return true;
}

// Tables share only a prefix, so the only candidate is the block where the shorter one ends.
bool KvCacheWorld::SharesPartlyFilledBlock(const Sequence& a, const Sequence& b) const {
  const size_t num_tokens = std::min(a.contents.token_ids.size(), b.contents.token_ids.size());
  const auto size = static_cast<size_t>(sizes_.block_size_tokens);
  const size_t tail = num_tokens / size;
  const auto block_of = [tail](const Sequence& sequence) {
    const std::span<const BlockId> ids = sequence.table.block_ids();
    return tail < ids.size() ? ids[tail] : kNullBlockId;
  };
  const auto host_block_of = [tail](const Sequence& sequence) {
    const std::span<const HostBlockId> ids = sequence.host_table.host_block_ids();
    const auto num_passed = static_cast<size_t>(sequence.host_table.num_passed_blocks());
    return tail >= num_passed && tail - num_passed < ids.size() ? ids[tail - num_passed] : -1;
  };
  return num_tokens % size != 0 &&
         ((block_of(a) != kNullBlockId && block_of(a) == block_of(b)) ||
          (host_block_of(a) >= 0 && host_block_of(a) == host_block_of(b)));
}

bool KvCacheWorld::IsWholeGroup(std::span<const size_t> indices) const {
  for (size_t other = 0; other < sequences_.size(); ++other) {
    if (std::find(indices.begin(), indices.end(), other) != indices.end()) {
      continue;
    }
    for (size_t index : indices) {
      if (SharesPartlyFilledBlock(sequences_[index], sequences_[other])) {
        return false;
      }
    }
  }
  return true;
}

std::vector<SwapTables> KvCacheWorld::TablesOf(std::span<const size_t> indices) {
  std::vector<SwapTables> tables;
  for (size_t index : indices) {
    tables.push_back({&sequences_[index].table, &sequences_[index].host_table});
  }
  return tables;
}

std::vector<BlockHash> KvCacheWorld::HashesOf(const Contents& contents, size_t num_blocks) const {
  const auto size = static_cast<size_t>(sizes_.block_size_tokens);
  std::vector<BlockHash> hashes;
  BlockHash parent = RootHash(kKey, std::to_string(contents.salt));
  for (size_t i = 0; i < num_blocks; ++i) {
    parent = ChainHash(kKey, parent, std::span(contents.token_ids).subspan(i * size, size));
    hashes.push_back(parent);
  }
  return hashes;
}

KvCacheWorld::Contents KvCacheWorld::Beginning(const Contents& contents, size_t num_blocks) const {
  const auto end =
      contents.token_ids.begin() + static_cast<int64_t>(num_blocks) * sizes_.block_size_tokens;
  return {.salt = contents.salt, .token_ids = {contents.token_ids.begin(), end}};
}

PrefixMatch KvCacheWorld::ModelMatch(const Contents& contents, size_t num_blocks) const {
  const auto block_of = [&](int32_t i) {
    const auto listed = listed_.find(Beginning(contents, static_cast<size_t>(i) + 1));
    return listed == listed_.end() ? kNullBlockId : listed->second;
  };
  PrefixMatch match;
  for (auto n = static_cast<int32_t>(num_blocks); n > 0 && match.num_blocks == 0; --n) {
    int32_t first = n;  // begin of the listed blocks without a gap before the n-th
    while (first > 0 && block_of(first - 1) != kNullBlockId) {
      --first;
    }
    const int32_t num_passed = NumPassedBlocks(n * sizes_.block_size_tokens);
    if (first <= num_passed) {
      match = {.num_blocks = n, .num_passed_blocks = num_passed};
    }
  }
  for (int32_t i = match.num_passed_blocks; i < match.num_blocks; ++i) {
    if (NumHolders(block_of(i)) == 0) {
      break;
    }
    ++match.num_held_blocks;
  }
  // Behind a sliding window, held blocks count only if all of the match's blocks are held.
  const bool are_all_held = match.num_held_blocks == match.num_blocks - match.num_passed_blocks;
  match.num_held_blocks = sizes_.sliding_window == 0 || are_all_held ? match.num_held_blocks : 0;
  return match;
}

void KvCacheWorld::HandOut(BlockId block_id) {
  std::erase_if(listed_, [block_id](const auto& entry) { return entry.second == block_id; });
}

int32_t KvCacheWorld::NumHolders(BlockId block_id) const {
  int64_t num_holders = 0;
  for (const Sequence& sequence : sequences_) {
    const std::span<const BlockId> ids = sequence.table.block_ids();
    num_holders += std::count(ids.begin(), ids.end(), block_id);
  }
  num_holders += std::count_if(leaving_.begin(), leaving_.end(), [block_id](const auto& swap) {
    return swap.copy.block == block_id;
  });
  return static_cast<int32_t>(num_holders);
}

const std::string& KvCacheWorld::Check() {
  std::vector<const BlockTable*> tables;
  std::vector<const HostTable*> host_tables;
  for (const Sequence& sequence : sequences_) {
    tables.push_back(&sequence.table);
    host_tables.push_back(&sequence.host_table);
    CheckContents(sequence);
  }
  manager_.CheckInvariants(tables, host_tables);
  CheckCounts();
  return fault_;
}

void KvCacheWorld::CheckContents(const Sequence& sequence) {
  const std::vector<TokenId>& tokens = sequence.contents.token_ids;
  const bool is_on_host = !sequence.host_table.empty();
  const auto num_held = is_on_host ? sequence.host_table.num_tokens() : sequence.table.num_tokens();
  Expect(num_held == static_cast<int32_t>(tokens.size()), "a table holds its tokens");
  if (is_on_host || !fault_.empty()) {
    return;  // checked after its swap-in
  }
  Cell cell = 0;
  for (size_t position = 0; position < tokens.size(); ++position) {
    const auto size = static_cast<size_t>(sizes_.block_size_tokens);
    const BlockId block_id = sequence.table.block_ids()[position / size];
    cell = CellAfter(cell, tokens[position]);
    if (block_id == kNullBlockId) {
      continue;  // a passed block
    }
    Expect(memory_[static_cast<size_t>(block_id)][position % size] == cell,
           "a table leads to its own tokens");
  }
}

// Derives the state from the holders, not from the manager's books.
BlockState KvCacheWorld::StateOf(BlockId block_id) const {
  for (const Sequence& sequence : sequences_) {
    if (std::ranges::count(sequence.table.block_ids(), block_id) > 0) {
      return BlockState::kActive;
    }
  }
  if (NumHolders(block_id) > 0) {
    return BlockState::kLeaving;
  }
  if (!manager_.pool().is_free(block_id)) {
    return BlockState::kPending;
  }
  const bool is_listed = std::ranges::any_of(
      listed_, [block_id](const auto& entry) { return entry.second == block_id; });
  return is_listed ? BlockState::kCached : BlockState::kFree;
}

void KvCacheWorld::CheckCounts() {
  int32_t num_used = 0;
  const std::vector<BlockState> states = manager_.BlockStates();
  for (BlockId block_id = 1; block_id < sizes_.num_blocks; ++block_id) {
    Expect(states[static_cast<size_t>(block_id)] == StateOf(block_id), "a block is where it is");
    const int32_t num_holders = NumHolders(block_id);
    num_used += num_holders > 0 ? 1 : 0;
    Expect(manager_.pool().ref_count(block_id) == num_holders, "a reference for each holder");
  }
  Expect(manager_.pool().num_used_blocks() == num_used, "who is held is used");
  Expect(manager_.num_leaving_blocks() == static_cast<int32_t>(leaving_.size()), "leaving");
  std::set<HostBlockId> host_blocks;
  for (const Sequence& sequence : sequences_) {
    const std::span<const HostBlockId> ids = sequence.host_table.host_block_ids();
    host_blocks.insert(ids.begin(), ids.end());
  }
  for (const SwapUnderWay& swap : arriving_) {
    host_blocks.insert(swap.copy.host_block);
  }
  Expect(manager_.host_pool().num_used_blocks() == static_cast<int32_t>(host_blocks.size()),
         "host blocks are used by who is swapped, or on the way back");
  Expect(manager_.num_cached_blocks() == static_cast<int32_t>(listed_.size()), "listed blocks");
}

std::string KvCacheWorld::Fingerprint() const {
  std::string text = manager_.pool().is_fenced() ? "F" : "f";
  auto add = [&text](auto number) { text += std::to_string(number) + ","; };
  auto add_free = [&add](BlockPool pool) {  // a copy: lowering its fence lists the pending blocks
    for (int round = 0; round < 2; ++round) {
      std::ranges::for_each(pool.FreeListForTest(), add);
      if (pool.is_fenced()) {
        pool.LowerFence();
      }
      add('|');
    }
  };
  add_free(manager_.pool());
  add_free(manager_.host_pool());
  for (const Sequence& sequence : sequences_) {
    std::ranges::for_each(sequence.contents.token_ids, add);
    text += ':';
    std::ranges::for_each(sequence.table.block_ids(), add);
    text += ':';
    std::ranges::for_each(sequence.host_table.host_block_ids(), add);
    add(sequence.host_table.num_passed_blocks());
    text += sequence.swapped_in_step == step_id_ + 1 ? '!' : ';';
  }
  for (const auto* swaps : {&leaving_, &arriving_}) {
    for (const SwapUnderWay& swap : *swaps) {
      add(swap.copy.block);
      add(swap.copy.host_block);
      add(step_id_ + 1 - swap.step_id);
    }
    text += '/';
  }
  for (const auto& [contents, block_id] : listed_) {
    std::ranges::for_each(contents.token_ids, add);
    text += '=';
    add(block_id);
  }
  return text;
}

void KvCacheWorld::Expect(bool condition, const char* what) {
  if (!condition && fault_.empty()) {
    fault_ = std::string("not so: ") + what;
  }
}

}  // namespace quire
