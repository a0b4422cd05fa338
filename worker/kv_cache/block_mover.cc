#include "worker/kv_cache/block_mover.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

// Adds the stopwatch's lifetime to *nanos.
class Stopwatch {
 public:
  explicit Stopwatch(int64_t* nanos) : nanos_(*nanos), begin_(SteadyNow()) {}
  ~Stopwatch() { nanos_ += SteadyNow() - begin_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  int64_t& nanos_;
  const Instant begin_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockMover>> BlockMover::Create(KernelBackend& backend,
                                                               const KvCacheView& pool,
                                                               int32_t num_host_blocks) {
  std::unique_ptr<DeviceMemory> host;
  if (num_host_blocks > 0) {
    auto bytes = CheckedMultiply(pool.layout.block_bytes(), num_host_blocks);
    if (!bytes.has_value()) {
      return InvalidArgument(
          "MEMORY",
          absl::StrCat("num_host_blocks: the size of the pool in bytes overflows (got ",
                       num_host_blocks,
                       ")"));
    }
    QUIRE_ASSIGN_OR_RETURN(host, backend.AllocateHost(*bytes));
  }
  return std::unique_ptr<BlockMover>(
      new BlockMover(backend, pool, num_host_blocks, std::move(host)));
}

BlockMover::BlockMover(KernelBackend& backend,
                       const KvCacheView& pool,
                       int32_t num_host_blocks,
                       std::unique_ptr<DeviceMemory> host)
    : backend_(backend),
      pool_(pool),
      host_(std::move(host)),
      last_transfer_(static_cast<size_t>(pool.num_blocks), 0),
      last_host_transfer_(static_cast<size_t>(num_host_blocks), 0),
      generations_(static_cast<size_t>(num_host_blocks), 0) {}

BlockMover::~BlockMover() { FinishSwaps(); }

void BlockMover::SwapOut(const std::vector<BlockSwapOut>& swaps, uint64_t step_id) {
  blocks_.clear();
  host_blocks_.clear();
  for (const BlockSwapOut& swap : swaps) {
    blocks_.push_back(swap.block);
    host_blocks_.push_back(swap.host_block);
    uint64_t& generation = generations_[static_cast<size_t>(swap.host_block)];
    num_filled_ += generation == 0 ? 1 : 0;
    generation = step_id;
  }
  Start(TransferDirection::kToHost, step_id);
}

std::vector<BlockId> BlockMover::SwapIn(const std::vector<BlockSwapIn>& swaps, uint64_t step_id) {
  std::vector<BlockId> failed;
  blocks_.clear();
  host_blocks_.clear();
  for (const BlockSwapIn& swap : swaps) {
    // Generation 0 marks an empty host block, so a swap-in that names 0 fails too.
    const uint64_t generation = generations_[static_cast<size_t>(swap.host_block)];
    if (generation == 0 || generation != swap.generation) {
      failed.push_back(swap.block);
      continue;
    }
    blocks_.push_back(swap.block);
    host_blocks_.push_back(swap.host_block);
  }
  Start(TransferDirection::kToDevice, step_id);
  return failed;
}

void BlockMover::Start(TransferDirection direction, uint64_t step_id) {
  if (blocks_.empty()) {
    return;
  }
  for (HostBlockId host_block : host_blocks_) {
    Await(last_host_transfer_[static_cast<size_t>(host_block)]);
  }
  AwaitBlocks(blocks_);
  const Stopwatch stopwatch(&busy_nanos_);
  const TransferId transfer =
      backend_.StartTransfer({.direction = direction,
                              .cache = pool_,
                              .host = static_cast<std::byte*>(host_->data()),
                              .blocks = blocks_,
                              .host_blocks = host_blocks_});
  in_flight_.push_back({.transfer = transfer, .step_id = step_id});
  for (BlockId block : blocks_) {
    last_transfer_[static_cast<size_t>(block)] = transfer;
  }
  for (HostBlockId host_block : host_blocks_) {
    last_host_transfer_[static_cast<size_t>(host_block)] = transfer;
  }
}

void BlockMover::Copy(const std::vector<BlockCopy>& copies) {
  if (copies.empty()) {
    return;
  }
  blocks_.clear();
  targets_.clear();
  for (const BlockCopy& copy : copies) {
    blocks_.push_back(copy.src);
    targets_.push_back(copy.dst);
  }
  AwaitBlocks(blocks_);
  AwaitBlocks(targets_);
  const Stopwatch stopwatch(&busy_nanos_);
  backend_.CopyBlocks({.cache = pool_, .src = blocks_, .dst = targets_});
}

void BlockMover::AwaitBlocks(std::span<const BlockId> blocks) {
  if (in_flight_.empty()) {
    return;
  }
  for (BlockId block : blocks) {
    Await(last_transfer_[static_cast<size_t>(block)]);
  }
}

void BlockMover::Await(TransferId transfer) {
  const bool is_done = in_flight_.empty() || transfer < in_flight_.front().transfer;
  if (is_done || std::find(awaited_.begin(), awaited_.end(), transfer) != awaited_.end()) {
    return;
  }
  const Stopwatch stopwatch(&busy_nanos_);
  backend_.OrderAfter(transfer);
  awaited_.push_back(transfer);
}

uint64_t BlockMover::SwapsDone(uint64_t step_id) {
  const TransferId done = in_flight_.empty() ? 0 : backend_.TransfersDone();
  while (!in_flight_.empty() && in_flight_.front().transfer <= done) {
    std::erase(awaited_, in_flight_.front().transfer);
    in_flight_.pop_front();
  }
  return in_flight_.empty() ? step_id : in_flight_.front().step_id - 1;
}

void BlockMover::FinishSwaps() {
  if (!in_flight_.empty()) {
    const Stopwatch stopwatch(&busy_nanos_);
    backend_.WaitForTransfers();
    in_flight_.clear();
    awaited_.clear();
  }
}

void BlockMover::BeginEpoch() {
  FinishSwaps();
  std::fill(generations_.begin(), generations_.end(), 0);
  num_filled_ = 0;
}

}  // namespace quire
