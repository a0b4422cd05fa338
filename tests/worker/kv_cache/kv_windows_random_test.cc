// Random histories of KvWindows over real windows, each a function of its seed. Each write of a
// block gives it a content that no block had before. The test compares each sequence's window with
// the contents of its blocks. A failure names the seed; run one with QUIRE_SEED=<seed> <test>, and
// more with QUIRE_NUM_OPERATIONS=<n>.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/api/host_windows.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/crash_note.h"
#include "tests/support/random.h"
#include "tests/worker/kv_cache/watched_windows.h"
#include "worker/kv_cache/kv_windows.h"

namespace quire {
namespace {

constexpr int64_t kNumOperations = 300'000;
constexpr int32_t kOperationsPerSeed = 1000;

int64_t NumberFromEnvironment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return text == nullptr ? fallback : std::strtoll(text, nullptr, 10);
}

// Mapped bytes of pools in main memory: each pool, and each place that shows a block.
int64_t MappedBytesOfPools() {
  std::ifstream maps("/proc/self/maps");
  int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:kv-cache") != std::string::npos) {
      char* end = nullptr;
      const int64_t from = std::strtoll(line.c_str(), &end, 16);
      bytes += std::strtoll(end + 1, nullptr, 16) - from;
    }
  }
  return bytes;
}

enum Operation : uint8_t {
  kBegin,
  kBeginShared,
  kFork,
  kGrow,
  kRewrite,
  kExpect,
  kExpectBeginning,
  kRelease,
  kNewEpoch,
  kNumKinds,
};

// The number of times that each operation was possible and done.
using Counts = std::vector<int64_t>;

// Faults of Map calls: none, some fail, or one does nothing.
enum class Trouble : uint8_t { kNone, kFailures, kForgetsOne };

class World {
 public:
  // The analyzer takes members of standard containers for uninitialised.
  // NOLINTNEXTLINE(clang-analyzer-optin.cplusplus.UninitializedObject)
  World(uint64_t seed, Trouble trouble)
      : random_(seed),
        trouble_random_(seed),
        trouble_(trouble),
        num_blocks_(random_.Between(2, random_.OneIn(2) ? 12 : 60)),
        num_windows_(random_.Between(1, 12)),
        window_blocks_(random_.Between(1, 12)),
        pool_(*MakeHostWindows({.block_bytes = HostPageBytes(),
                                .num_blocks = num_blocks_,
                                .num_places = int64_t{num_windows_} * window_blocks_})),
        memory_(*pool_),
        stamps_(static_cast<size_t>(num_blocks_)),
        num_users_(static_cast<size_t>(num_blocks_)),
        sequences_(static_cast<size_t>(num_windows_)) {
    memory_.JudgeBy([this, executor = std::this_thread::get_id()](
                        const WatchedWindows::MapCall& call, bool shows) {
      if (trouble_ == Trouble::kFailures && trouble_random_.OneIn(20)) {
        return WatchedWindows::Fate::kFails;
      }
      // Only a Map of the executor's thread is forgotten. A place that was mapped ahead may never
      // be read, so forgetting it might show no fault.
      if (trouble_ == Trouble::kForgetsOne && shows && call.thread == executor &&
          !std::exchange(has_forgotten_, true)) {
        return WatchedWindows::Fate::kForgotten;
      }
      return WatchedWindows::Fate::kDone;
    });
    BeginEpoch();
  }

  // Returns "" or the first place at which a sequence would read another content than its own.
  std::string Run(Counts& counts) {
    std::string fault;
    for (int32_t i = 0; i < kOperationsPerSeed && fault.empty(); ++i) {
      const Operation operation = DrawOperation();
      counts[operation] += Do(operation) ? 1 : 0;
      fault = Check();
    }
    return fault.empty() ? CheckLedger() : fault;
  }

  bool has_forgotten() const { return has_forgotten_; }
  const WindowCounts& counts() const { return counts_; }
  int64_t num_refused() const { return num_refused_; }

 private:
  struct Sequence {
    std::vector<BlockId> block_ids;
    bool is_shown = false;  // all of them
    std::optional<BlockId> expected;
  };

  // A new scheduler's state: no sequences, an empty pool, windows that show nothing.
  void BeginEpoch() {
    EndEpoch();
    QUIRE_CHECK(memory_.Clear().ok());
    std::fill(sequences_.begin(), sequences_.end(), std::nullopt);
    std::fill(stamps_.begin(), stamps_.end(), 0);
    std::fill(num_users_.begin(), num_users_.end(), 0);
    spare_block_ids_.clear();
    const auto num_places = static_cast<int32_t>(pool_->shape().num_places);
    const int64_t limit =
        random_.OneIn(2) ? pool_->max_mapped_places() : random_.Between(1, num_places);
    // Without a limit every Show shows all blocks, so what a Map forgot is checked at once.
    memory_.LimitTo(trouble_ == Trouble::kForgetsOne ? pool_->max_mapped_places() : limit);
    windows_ = *KvWindows::Create(*backend_, memory_, num_windows_, window_blocks_);
  }

  void EndEpoch() {
    if (windows_ != nullptr) {
      const WindowCounts& of = windows_->counts();
      counts_.num_found += of.num_found;
      counts_.num_mapped += of.num_mapped;
      counts_.num_mapped_ahead += of.num_mapped_ahead;
      counts_.num_taken_down += of.num_taken_down;
      windows_.reset();
    }
  }

  Operation DrawOperation() {
    // Growing is what most steps do; an epoch ends rarely.
    const int32_t draw = random_.Below(100);
    if (draw < 40) {
      return kGrow;
    }
    return draw == 99 && random_.OneIn(3)
               ? kNewEpoch
               : static_cast<Operation>(random_.Between(kBegin, kRelease));
  }

  bool Do(Operation operation) {
    const SequenceHandle handle = AnyHandle();
    switch (operation) {
      case kBegin:
        return Begin(handle, Nulls(), random_.Between(0, 4));
      case kBeginShared:
        return BeginShared(handle, AnyHandle());
      case kFork:
        return Fork(handle, AnyHandle());
      case kGrow:
        return SequenceOf(handle).has_value() && Grow(handle, random_.OneIn(3) ? 3 : 1);
      case kRewrite:
        return Rewrite(handle);
      case kExpect:
        return Expect();
      case kExpectBeginning:
        return ExpectBeginning(handle);
      case kRelease:
        return random_.OneIn(2) && Release(handle);
      case kNewEpoch:
        BeginEpoch();
        return true;
      case kNumKinds:
        break;
    }
    return false;
  }

  // A table may begin with blocks that a sliding window has passed.
  std::vector<BlockId> Nulls() {
    const int32_t most = std::min(window_blocks_, 3);
    const int32_t count = random_.OneIn(6) ? random_.Between(1, most) : 0;
    return std::vector<BlockId>(static_cast<size_t>(count), kNullBlockId);
  }

  // The handle often has a sequence already, which is dropped then.
  bool Begin(SequenceHandle handle, std::vector<BlockId> block_ids, int32_t num_new) {
    if (SequenceOf(handle).has_value()) {
      if (!random_.OneIn(8)) {
        return false;
      }
      Drop(handle);
    }
    for (const BlockId block : block_ids) {
      Use(block);
    }
    SequenceOf(handle).emplace(Sequence{.block_ids = std::move(block_ids)});
    windows_->Begin(handle);
    Grow(handle, num_new);
    return true;
  }

  // Begins a sequence behind some of the first blocks of another sequence, or behind all of them.
  bool BeginShared(SequenceHandle handle, SequenceHandle other) {
    if (handle == other || !SequenceOf(other).has_value()) {
      return false;
    }
    std::vector<BlockId> block_ids = SequenceOf(other)->block_ids;
    block_ids.resize(
        static_cast<size_t>(random_.Between(0, static_cast<int32_t>(block_ids.size()))));
    return Begin(handle, std::move(block_ids), 1);
  }

  // Begins a sequence with the other's blocks and a new last block, because both write the last
  // block.
  bool Fork(SequenceHandle handle, SequenceHandle other) {
    if (handle == other || !SequenceOf(other).has_value() || SequenceOf(other)->block_ids.empty()) {
      return false;
    }
    std::vector<BlockId> block_ids = SequenceOf(other)->block_ids;
    block_ids.pop_back();
    return Begin(handle, std::move(block_ids), 1);
  }

  // Appends up to `count` free blocks and shows the whole table.
  bool Grow(SequenceHandle handle, int32_t count) {
    Sequence& sequence = *SequenceOf(handle);
    std::optional<BlockId> block;
    for (; count > 0 && NumBlocks(sequence) < window_blocks_ &&
           (block = TakeBlock(handle, sequence)).has_value();
         --count) {
      sequence.block_ids.push_back(*block);
      sequence.expected.reset();
    }
    sequence.is_shown = windows_->Show(handle, sequence.block_ids);
    num_refused_ += sequence.is_shown ? 0 : 1;
    return true;
  }

  // Takes the expected block, the neighbour of the last block, or any free block.
  std::optional<BlockId> TakeBlock(SequenceHandle handle, const Sequence& sequence) {
    std::optional<BlockId> block = sequence.expected;
    if (!block.has_value()) {
      block = Announced(handle, sequence);
    }
    if (!block.has_value() || !IsFree(*block)) {
      block = NextTo(sequence);
    }
    if (!block.has_value() || random_.OneIn(4)) {
      block = AnyFree();
    }
    if (block.has_value()) {
      Use(*block);
      Write(*block);
    }
    return block;
  }

  std::optional<BlockId> NextTo(const Sequence& sequence) const {
    const BlockId next = sequence.block_ids.empty() ? kNullBlockId : sequence.block_ids.back() + 1;
    return next != kNullBlockId && next < num_blocks_ && IsFree(next) ? std::optional(next)
                                                                      : std::nullopt;
  }

  std::optional<BlockId> AnyFree() {
    std::vector<BlockId> free;
    for (BlockId block = 1; block < num_blocks_; ++block) {
      if (IsFree(block)) {
        free.push_back(block);
      }
    }
    return free.empty() ? std::nullopt : std::optional(free[AnyIndex(free.size())]);
  }

  bool Rewrite(SequenceHandle handle) {
    if (!SequenceOf(handle).has_value() || SequenceOf(handle)->block_ids.empty()) {
      return false;
    }
    const std::vector<BlockId>& block_ids = SequenceOf(handle)->block_ids;
    const BlockId block = block_ids[AnyIndex(block_ids.size())];
    return block != kNullBlockId && (Write(block), true);
  }

  // Announces the next block of some sequences. The announcement is right unless another sequence
  // takes the block. Now and then StartAhead is left out.
  bool Expect() {
    bool has_any = false;
    for (SequenceHandle handle = 0; handle < sequences_.size(); ++handle) {
      if (!SequenceOf(handle).has_value() || random_.OneIn(3)) {
        continue;
      }
      Sequence& sequence = *SequenceOf(handle);
      const std::optional<BlockId> next = NextTo(sequence);
      sequence.expected = next.has_value() && !random_.OneIn(4) ? next : AnyFree();
      if (sequence.expected.has_value()) {
        windows_->Expect(handle, *sequence.expected);
        has_any = true;
      }
    }
    if (!random_.OneIn(5)) {
      windows_->StartAhead();
    }
    return has_any;
  }

  // Announces the first blocks of the window's next sequence. Now and then the window has a
  // sequence, or blocks are not free. TakeBlock takes the announced blocks if they are still free.
  bool ExpectBeginning(SequenceHandle handle) {
    if (SequenceOf(handle).has_value() && !random_.OneIn(8)) {
      return false;
    }
    spare_ = handle;
    spare_block_ids_.clear();
    for (int32_t i = random_.Between(1, 5); i > 0; --i) {
      spare_block_ids_.push_back(random_.Between(1, num_blocks_ - 1));
    }
    windows_->ExpectBeginning(handle, spare_block_ids_);
    if (!random_.OneIn(5)) {
      windows_->StartAhead();
    }
    if (SequenceOf(handle).has_value()) {
      SequenceOf(handle)->is_shown = false;  // until its next Show
    }
    return true;
  }

  // The block that was announced for the next place of this sequence's window.
  std::optional<BlockId> Announced(SequenceHandle handle, const Sequence& sequence) const {
    const size_t index = sequence.block_ids.size();
    return handle == spare_ && index < spare_block_ids_.size()
               ? std::optional(spare_block_ids_[index])
               : std::nullopt;
  }

  bool Release(SequenceHandle handle) {
    if (!SequenceOf(handle).has_value()) {
      return false;
    }
    windows_->End(handle);
    Drop(handle);
    return true;
  }

  void Drop(SequenceHandle handle) {
    for (const BlockId block : SequenceOf(handle)->block_ids) {
      num_users_[static_cast<size_t>(block)] -= block == kNullBlockId ? 0 : 1;
    }
    SequenceOf(handle).reset();
  }

  // Fills the block with a content that no block had before.
  void Write(BlockId block) {
    stamps_[static_cast<size_t>(block)] = ++last_stamp_;
    auto* const words = reinterpret_cast<uint64_t*>(static_cast<std::byte*>(memory_.pool()) +
                                                    block * pool_->shape().block_bytes);
    std::fill_n(words, kNumWords, last_stamp_);
  }

  void Use(BlockId block) {
    num_users_[static_cast<size_t>(block)] += block == kNullBlockId ? 0 : 1;
  }
  bool IsFree(BlockId block) const { return num_users_[static_cast<size_t>(block)] == 0; }
  static int32_t NumBlocks(const Sequence& sequence) {
    return static_cast<int32_t>(sequence.block_ids.size());
  }
  std::optional<Sequence>& SequenceOf(SequenceHandle handle) { return sequences_[handle]; }
  SequenceHandle AnyHandle() { return static_cast<SequenceHandle>(random_.Below(num_windows_)); }
  size_t AnyIndex(size_t size) {
    return static_cast<size_t>(random_.Below(static_cast<int32_t>(size)));
  }

  // Compares each shown place with the content of its block.
  std::string Check() {
    for (SequenceHandle handle = 0; handle < sequences_.size(); ++handle) {
      if (!SequenceOf(handle).has_value() || !SequenceOf(handle)->is_shown) {
        continue;
      }
      const std::vector<BlockId>& block_ids = SequenceOf(handle)->block_ids;
      for (size_t i = 0; i < block_ids.size(); ++i) {
        const int64_t place = windows_->FirstPlace(handle) + static_cast<int64_t>(i);
        if (block_ids[i] != kNullBlockId &&
            StampAt(place) != stamps_[static_cast<size_t>(block_ids[i])]) {
          return "sequence " + std::to_string(handle) + ", place " + std::to_string(i) +
                 ": not what block " + std::to_string(block_ids[i]) + " holds";
        }
      }
    }
    return "";
  }

  // The word that fills a place; 0 if its first and last words differ.
  uint64_t StampAt(int64_t place) const {
    uint64_t words[kNumWords];
    std::memcpy(
        words,
        static_cast<const std::byte*>(memory_.windows()) + place * pool_->shape().block_bytes,
        sizeof(words));
    return words[0] == words[kNumWords - 1] ? words[0] : 0;
  }

  // Checks that the windows believe as many places to be mapped as the record and the system show.
  std::string CheckLedger() {
    windows_->Begin(0);
    windows_->Show(0, std::vector<BlockId>{1});  // waits for what was expected
    const int64_t believed = windows_->num_mapped();
    const int64_t limit = memory_.max_mapped_places();
    EndEpoch();
    const int64_t shown = memory_.num_shown();
    const int64_t mapped = MappedBytesOfPools() / pool_->shape().block_bytes - num_blocks_;
    // If one Map of an order fails, the windows count the whole order as failed. So they may
    // believe in fewer places than are shown.
    const bool is_right =
        trouble_ == Trouble::kFailures ? believed <= shown : believed == shown && shown <= limit;
    return is_right && mapped == shown
               ? ""
               : "believed " + std::to_string(believed) + ", shown " + std::to_string(shown) +
                     ", mapped " + std::to_string(mapped);
  }

  static constexpr size_t kNumWords = 512;  // those of the smallest page

  Random random_;
  Random trouble_random_;  // asked on the mapper's thread as well
  const Trouble trouble_;
  bool has_forgotten_ = false;
  const int32_t num_blocks_;
  const int32_t num_windows_;
  const int32_t window_blocks_;
  const std::unique_ptr<KernelBackend> backend_ = CreateReferenceBackend();
  const std::unique_ptr<WindowMemory> pool_;
  WatchedWindows memory_;

  uint64_t last_stamp_ = 0;
  std::vector<uint64_t> stamps_;                    // by block: what it holds
  std::vector<int32_t> num_users_;                  // by block
  std::vector<std::optional<Sequence>> sequences_;  // by handle
  SequenceHandle spare_ = 0;                        // of the last ExpectBeginning
  std::vector<BlockId> spare_block_ids_;
  WindowCounts counts_;
  int64_t num_refused_ = 0;
  std::unique_ptr<KvWindows> windows_;
};

TEST(KvWindowsRandomTest, WindowsShowWhatBlocksHoldThroughRandomOperations) {
  const bool is_one_seed = std::getenv("QUIRE_SEED") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  const int64_t num_operations =
      NumberFromEnvironment("QUIRE_NUM_OPERATIONS", is_one_seed ? 1 : kNumOperations);
  const auto first_seed = static_cast<uint64_t>(NumberFromEnvironment("QUIRE_SEED", 1));
  Counts counts(kNumKinds, 0);
  Counts windows(5, 0);
  int64_t num_done = 0;
  for (uint64_t seed = first_seed; num_done < num_operations; ++seed) {
    SetCrashNote("QUIRE_SEED=" + std::to_string(seed));
    World world(seed, seed % 4 == 0 ? Trouble::kFailures : Trouble::kNone);

    const std::string fault = world.Run(counts);

    ASSERT_EQ(fault, "") << "QUIRE_SEED=" << seed;
    num_done = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    windows[0] += world.counts().num_found;
    windows[1] += world.counts().num_mapped;
    windows[2] += world.counts().num_mapped_ahead;
    windows[3] += world.counts().num_taken_down;
    windows[4] += world.num_refused();
  }
  SetCrashNote("");
  std::printf("%lld operations, of each kind:", static_cast<long long>(num_done));
  for (const Counts* kinds : {&counts, &windows}) {
    for (const int64_t count : *kinds) {
      std::printf(" %lld", static_cast<long long>(count));
      // A history in which something never happens proves nothing about it.
      EXPECT_TRUE(is_one_seed || count > num_done / 1000) << count;
    }
    std::printf(kinds == &counts ? "; places found, mapped, ahead, taken down; refused:" : "\n");
  }
  EXPECT_EQ(MappedBytesOfPools(), 0);
}

// Checks the check: in each of these worlds one Map that would have replaced a block does nothing.
TEST(KvWindowsRandomTest, AStaleWindowIsFound) {
  int num_forgotten = 0;
  int num_found = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Counts counts(kNumKinds, 0);
    World world(seed, Trouble::kForgetsOne);

    const std::string fault = world.Run(counts);

    EXPECT_TRUE(fault.empty() || world.has_forgotten()) << "seed " << seed << ": " << fault;
    num_forgotten += world.has_forgotten() ? 1 : 0;
    num_found += fault.empty() ? 0 : 1;
  }
  EXPECT_GT(num_forgotten, 30);
  EXPECT_EQ(num_found, num_forgotten);
}

}  // namespace
}  // namespace quire
