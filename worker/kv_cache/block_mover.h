// BlockMover moves whole blocks for the step executor: copies inside the KV pool, and swaps between
// the KV pool and the host pool. The mover owns the host pool. Swaps run while steps compute. An
// operation on a block that is being swapped runs after the swap. Each host block has a generation:
// the id of the step that filled the block. A swap-in that names another generation copies nothing.
//
// Thread safety: one caller at a time (the executor thread).
// Source:        PagedAttention, Kwon et al. 2023, sections 4.4 (copy-on-write) and 4.5 (swapping).
#ifndef QUIRE_WORKER_KV_CACHE_BLOCK_MOVER_H_
#define QUIRE_WORKER_KV_CACHE_BLOCK_MOVER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/step/step_plan.h"
#include "kernels/api/kernel_backend.h"

namespace quire {

class BlockMover {
 public:
  // Allocates num_host_blocks blocks of host memory, none if 0. The backend and the pool must
  // outlive the mover. Errors, reason MEMORY: kResourceExhausted if memory is short;
  // kInvalidArgument if the size overflows.
  static absl::StatusOr<std::unique_ptr<BlockMover>> Create(KernelBackend& backend,
                                                            const KvCacheView& pool,
                                                            int32_t num_host_blocks);
  // Waits for the swaps in flight.
  ~BlockMover();
  BlockMover(const BlockMover&) = delete;
  BlockMover& operator=(const BlockMover&) = delete;

  // SwapOut, SwapIn and Copy take effect after all backend operations that were called earlier.
  // REQUIRES: StepPlanChecker accepted the plan.
  void SwapOut(const std::vector<BlockSwapOut>& swaps, uint64_t step_id);
  // Returns the blocks that were not filled, because the host block's generation differs from the
  // generation in the swap.
  std::vector<BlockId> SwapIn(const std::vector<BlockSwapIn>& swaps, uint64_t step_id);
  void Copy(const std::vector<BlockCopy>& copies);

  // Makes later backend operations run after the swaps in flight that read or write these blocks.
  // Cost: O(1) while no swap is in flight, else O(blocks).
  void AwaitBlocks(std::span<const BlockId> blocks);

  // Returns the id of the last step, at most step_id, up to which all swaps are done.
  uint64_t SwapsDone(uint64_t step_id);
  // Waits until all swaps are done.
  void FinishSwaps();
  // Finishes swaps and forgets the contents of all host blocks. Step ids start again from 1.
  void BeginEpoch();

  const KvCacheView& pool() const { return pool_; }
  int32_t num_host_blocks() const { return static_cast<int32_t>(last_host_transfer_.size()); }
  // Host blocks that were filled since BeginEpoch.
  int32_t num_filled_host_blocks() const { return num_filled_; }
  // Time spent in backend calls so far: calls that copy, start swaps or wait for swaps.
  int64_t busy_nanos() const { return busy_nanos_; }

 private:
  struct Swap {
    TransferId transfer = 0;
    uint64_t step_id = 0;
  };

  BlockMover(KernelBackend& backend,
             const KvCacheView& pool,
             int32_t num_host_blocks,
             std::unique_ptr<DeviceMemory> host);

  // Starts one transfer between blocks_ and host_blocks_. Returns at once if they are empty.
  void Start(TransferDirection direction, uint64_t step_id);
  void Await(TransferId transfer);

  KernelBackend& backend_;
  const KvCacheView pool_;
  std::unique_ptr<DeviceMemory> host_;  // null if there are no host blocks

  std::deque<Swap> in_flight_;                  // oldest first
  std::vector<TransferId> last_transfer_;       // by block: the last transfer that used it; 0: none
  std::vector<TransferId> last_host_transfer_;  // by host block: the last transfer that used it
  std::vector<TransferId> awaited_;    // transfers in flight that later operations already wait for
  std::vector<uint64_t> generations_;  // by host block: the step that filled it; 0: empty
  int32_t num_filled_ = 0;             // host blocks whose generation is not 0
  int64_t busy_nanos_ = 0;

  // Scratch.
  std::vector<BlockId> blocks_;
  std::vector<BlockId> targets_;
  std::vector<HostBlockId> host_blocks_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_BLOCK_MOVER_H_
