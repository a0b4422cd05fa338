// CoreStats is a snapshot of the core in plain numbers. Exporters turn it into metrics.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_CORE_CORE_STATS_H_
#define QUIRE_SCHEDULER_CORE_CORE_STATS_H_

#include <cstdint>

namespace quire {

struct CoreStats {
  // Values at present.
  int32_t num_waiting_requests = 0;
  int32_t num_running_requests = 0;
  int32_t num_running_sequences = 0;
  int32_t num_swapped_requests = 0;
  int64_t num_queued_tokens = 0;             // prompts and resumed output of waiting requests
  int32_t num_waiting_resumed_requests = 0;  // part of num_waiting_requests; see WaitingQueue
  int64_t num_queued_resumed_tokens = 0;     // part of num_queued_tokens, in resumed requests
  // Estimated time until all waiting requests have started. 0: unknown.
  int64_t queue_drain_us = 0;
  int32_t num_blocks = 0;  // usable blocks (without the null block)
  int32_t block_size_tokens = 0;
  // num_free_blocks + num_used_blocks + num_pending_blocks = num_blocks.
  int32_t num_free_blocks = 0;
  int32_t num_free_cached_blocks = 0;  // free blocks that the prefix cache still finds
  int32_t num_used_blocks = 0;
  // Used blocks that are in a block table. The other used blocks are being copied to host memory.
  int32_t num_held_blocks = 0;
  int32_t num_shared_blocks = 0;   // used blocks that are referenced more than once
  int32_t num_pending_blocks = 0;  // given back, but not free before the running step is answered
  int32_t num_leaving_blocks = 0;  // being copied to host memory
  int32_t num_host_blocks = 0;
  int32_t num_used_host_blocks = 0;
  int32_t num_cached_blocks = 0;    // blocks that the prefix cache finds: used, pending and free
  int64_t num_stored_tokens = 0;    // tokens in held blocks; a shared block counts once
  int64_t num_table_tokens = 0;     // tokens in held blocks; a shared block counts once per table
  int64_t num_table_blocks = 0;     // held blocks; a shared block counts once per table
  int32_t num_pinned_prefixes = 0;  // prefixes in state kPinned
  int32_t num_pinned_blocks = 0;    // held blocks of pinned prefixes
  int32_t num_suspects = 0;         // requests suspected of crashing workers (crash_suspects.h)
  // Counts since the start.
  int64_t num_steps = 0;
  int64_t num_prompt_tokens_computed = 0;  // recomputed tokens included
  int64_t num_prefix_queried_tokens = 0;   // tokens of sequences that looked up the prefix cache
  int64_t num_prefix_hit_tokens = 0;       // queried tokens that were found, so not computed
  int64_t num_tokens_committed = 0;
  int64_t num_preemptions = 0;       // by swapping or recomputation
  int64_t num_swap_preemptions = 0;  // preemptions by swapping
  // KvCacheManager::Operations, summed over all epochs.
  int64_t num_blocks_allocated = 0;
  int64_t num_blocks_evicted = 0;
  int64_t num_blocks_found = 0;
  int64_t num_blocks_forked = 0;
  int64_t num_blocks_copied = 0;  // by copy-on-write, from a pinned prefix's partly filled block,
                                  // or to a page of the sequence's own
  int64_t num_blocks_swapped_out = 0;
  int64_t num_blocks_swapped_in = 0;  // failed swap-ins included
  int64_t num_failed_swap_ins = 0;    // blocks whose contents were lost in host memory
  int64_t num_recomputed_tokens = 0;
  int64_t num_requests_finished = 0;
  int64_t num_poison_requests = 0;  // requests and prefixes that ended for crashing their workers
  int64_t num_non_finite = 0;       // rows of logits with a NaN or an infinity

  // Internal fragmentation: the share of empty slots in held blocks, from 0 to 1. A slot holds one
  // token. Only the last block of a sequence has empty slots.
  double fragmentation() const {
    const double num_slots = double{1} * num_held_blocks * block_size_tokens;
    return num_slots == 0 ? 0.0 : 1.0 - static_cast<double>(num_stored_tokens) / num_slots;
  }
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_CORE_STATS_H_
