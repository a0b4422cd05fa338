// CoreStats is a snapshot of the core in plain numbers. Exporters turn it into metrics.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_CORE_CORE_STATS_H_
#define QUIRE_SCHEDULER_CORE_CORE_STATS_H_

#include <cstdint>

namespace quire {

struct CoreStats {
  // Now.
  int32_t num_waiting_requests = 0;
  int32_t num_running_requests = 0;
  int32_t num_running_sequences = 0;
  int32_t num_swapped_requests = 0;
  int64_t num_queued_tokens = 0;  // prompt tokens of waiting requests
  int32_t num_blocks = 0;         // usable blocks (without the null block)
  int32_t num_free_blocks = 0;
  int32_t num_used_blocks = 0;     // referenced by a block table
  int32_t num_pending_blocks = 0;  // released, fenced until the running step is answered
  int32_t num_leaving_blocks = 0;  // of the used ones: on their way to host memory
  int32_t num_host_blocks = 0;
  int32_t num_used_host_blocks = 0;
  int32_t num_cached_blocks = 0;  // found by their contents; used, pending and free ones
  int64_t num_stored_tokens = 0;  // tokens whose K and V lie in used blocks
  // Since the start.
  int64_t num_steps = 0;
  int64_t num_prompt_tokens_computed = 0;  // recomputed ones included
  int64_t num_prefix_queried_tokens = 0;   // of sequences that looked for cached blocks
  int64_t num_prefix_hit_tokens = 0;       // of them, found and not computed
  int64_t num_tokens_committed = 0;
  int64_t num_preemptions = 0;       // of either mode
  int64_t num_swap_preemptions = 0;  // of them, by swapping
  int64_t num_blocks_copied = 0;     // by copy-on-write
  int64_t num_blocks_swapped_out = 0;
  int64_t num_blocks_swapped_in = 0;
  int64_t num_recomputed_tokens = 0;
  int64_t num_requests_finished = 0;
  int64_t num_non_finite = 0;  // rows of logits with a NaN or an infinity
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_CORE_STATS_H_
