// BlockMover moves whole blocks for the step executor: copies inside the pool, and swaps between
// the pool and the host pool that it owns. Swaps go on while steps compute. The mover knows which
// blocks are on their way, and makes what uses one wait for it. It knows of each host block which
// step filled it, its generation, and brings back no other than was asked for.
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
  // Takes num_host_blocks blocks of host memory, none when 0. The backend and the pool outlive the
  // mover. Errors: kResourceExhausted, reason MEMORY.
  static absl::StatusOr<std::unique_ptr<BlockMover>> Create(KernelBackend& backend,
                                                            const KvCacheView& pool,
                                                            int32_t num_host_blocks);
  // Waits for the swaps on their way.
  ~BlockMover();
  BlockMover(const BlockMover&) = delete;
  BlockMover& operator=(const BlockMover&) = delete;

  // Each takes place after everything that was ordered before. REQUIRES: checked by
  // StepPlanChecker.
  void SwapOut(const std::vector<BlockSwapOut>& swaps, uint64_t step_id);
  // Returns the blocks that stay as they are: their host block is of another generation.
  std::vector<BlockId> SwapIn(const std::vector<BlockSwapIn>& swaps, uint64_t step_id);
  void Copy(const std::vector<BlockCopy>& copies);

  // What the backend is asked to do from now on may use these blocks. Cost: O(1) while nothing is
  // on its way, else O(blocks).
  void AwaitBlocks(std::span<const BlockId> blocks);

  // The last step of those up to step_id whose swaps are done.
  uint64_t SwapsDone(uint64_t step_id);
  // Waits until all of them are.
  void FinishSwaps();
  // The same, and forgets what is in the host blocks. Steps are numbered anew from here on.
  void BeginEpoch();

  const KvCacheView& pool() const { return pool_; }
  int32_t num_host_blocks() const { return static_cast<int32_t>(last_host_transfer_.size()); }
  // Of these, the ones that were filled since BeginEpoch.
  int32_t num_filled_host_blocks() const { return num_filled_; }
  // Time that went by in the backend so far: copies, starting swaps, waiting for them.
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

  // Of blocks_ and host_blocks_.
  void Start(TransferDirection direction, uint64_t step_id);
  void Await(TransferId transfer);

  KernelBackend& backend_;
  const KvCacheView pool_;
  std::unique_ptr<DeviceMemory> host_;  // null without host blocks

  std::deque<Swap> on_their_way_;               // oldest first
  std::vector<TransferId> last_transfer_;       // by block
  std::vector<TransferId> last_host_transfer_;  // by host block
  std::vector<TransferId> awaited_;             // of those on their way
  std::vector<uint64_t> generations_;           // by host block; 0: nothing was swapped out to it
  int32_t num_filled_ = 0;                      // host blocks that have a generation
  int64_t busy_nanos_ = 0;

  // Scratch.
  std::vector<BlockId> blocks_;
  std::vector<BlockId> targets_;
  std::vector<HostBlockId> host_blocks_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_BLOCK_MOVER_H_
