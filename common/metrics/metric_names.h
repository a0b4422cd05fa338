// Every metric of every process: one table of names and meanings. Units are in the names (seconds,
// bytes, tokens); counters end in _total.
//
// Names that begin with "vllm:" repeat our own metrics for routers, autoscalers and dashboards that
// look for exactly these names. These copies are served at /metrics only, never at /metrics/native.
//
// Thread safety: constants.
#ifndef QUIRE_COMMON_METRICS_METRIC_NAMES_H_
#define QUIRE_COMMON_METRICS_METRIC_NAMES_H_

#include <string_view>

namespace quire {

struct MetricInfo {
  std::string_view name;
  std::string_view help;  // without newline and backslash, which the text format would escape
};

namespace metric {

inline constexpr MetricInfo kBuildInfo{"quire_build_info",
                                       "Always 1; labels tell the version of the program."};
inline constexpr MetricInfo kModelInfo{
    "quire_model_info", "Always 1; labels tell the model served and the agreed limits."};
inline constexpr MetricInfo kWorkerUp{"quire_worker_up",
                                      "1 while a worker group is ready, else 0."};
inline constexpr MetricInfo kRankReady{
    "quire_rank_ready",
    "1 while the worker of this rank is ready together with all others, else 0."};
inline constexpr MetricInfo kSchedulerStandby{
    "quire_scheduler_standby",
    "1 while another scheduler has the workers and this one waits for its end, else 0."};
inline constexpr MetricInfo kDraining{"quire_draining", "1 while the server shuts down, else 0."};
inline constexpr MetricInfo kKvBlocks{
    "quire_kv_blocks",
    "Usable KV blocks by memory (tier) and state. active: held by sequences; cached: free, and "
    "found "
    "by what they hold; leaving: being copied to the host; pending: released, until the running "
    "step is answered."};
inline constexpr MetricInfo kKvBlocksCapacity{"quire_kv_blocks_capacity",
                                              "Usable KV blocks by memory (tier)."};
inline constexpr MetricInfo kKvBlockOpsTotal{
    "quire_kv_block_ops_total",
    "KV blocks by what was done. alloc: taken from the free list; evict: of those, cached ones; "
    "prefix_hit: found and referenced; fork: referenced by a fork; cow: copied before a write; "
    "swap_out, swap_in: copied to host memory and back."};
inline constexpr MetricInfo kKvBlockRefs{
    "quire_kv_block_refs", "References of block tables to KV blocks, shared ones once for each."};
inline constexpr MetricInfo kKvSharedBlocks{"quire_kv_shared_blocks",
                                            "KV blocks referenced more than once."};
inline constexpr MetricInfo kKvBlockBytes{"quire_kv_block_bytes",
                                          "K and V of one block on one worker."};
inline constexpr MetricInfo kKvBlockTokens{"quire_kv_block_tokens", "Tokens that a block holds."};
inline constexpr MetricInfo kKvTokens{
    "quire_kv_tokens",
    "stored: tokens in active KV blocks, shared ones once; referenced: shared ones once for each "
    "sequence; capacity: what all blocks could store."};
inline constexpr MetricInfo kKvFragmentation{
    "quire_kv_fragmentation_ratio",
    "Share of the slots of active KV blocks that hold no token, from 0 to 1."};
inline constexpr MetricInfo kRequests{"quire_requests", "Requests in the server by state."};
inline constexpr MetricInfo kQueuedTokens{"quire_queued_tokens",
                                          "Prompt tokens of waiting requests."};
inline constexpr MetricInfo kRequestsTotal{"quire_requests_total", "Requests ended, by outcome."};
inline constexpr MetricInfo kTokensTotal{
    "quire_tokens_total", "Tokens: prompt tokens computed, tokens generated, tokens recomputed."};
inline constexpr MetricInfo kPreemptionsTotal{
    "quire_preemptions_total", "Running requests whose KV blocks were taken, by mode."};
inline constexpr MetricInfo kKvSwapBytesTotal{
    "quire_kv_swap_bytes_total",
    "Bytes of KV blocks that each worker was told to copy to host memory (out) and back (in)."};
inline constexpr MetricInfo kKvSwapInFailuresTotal{
    "quire_kv_swap_in_failures_total",
    "KV blocks that a worker did not bring back, since its host memory held something else by "
    "then; their requests were recomputed."};
inline constexpr MetricInfo kPrefixCacheBlocks{
    "quire_prefix_cache_blocks", "KV blocks that requests find by their contents, used and free."};
inline constexpr MetricInfo kPinnedPrefixes{"quire_pinned_prefixes",
                                            "Prefixes whose KV blocks an operator keeps."};
inline constexpr MetricInfo kPinnedBlocks{"quire_pinned_kv_blocks",
                                          "KV blocks in use that are kept for pinned prefixes."};
inline constexpr MetricInfo kPrefixCacheTokensTotal{
    "quire_prefix_cache_tokens_total",
    "Known tokens of sequences that started, by whether they were found in the cache."};
inline constexpr MetricInfo kStepsTotal{"quire_steps_total", "Steps answered by the workers."};
inline constexpr MetricInfo kStepDuration{
    "quire_step_duration_seconds",
    "Parts of a step, as the scheduler's clock and the worker's saw them."};
inline constexpr MetricInfo kStepSequences{"quire_step_batch_sequences", "Sequences in a step."};
inline constexpr MetricInfo kStepTokens{"quire_step_batch_tokens", "Tokens in a step."};
inline constexpr MetricInfo kLoopTurn{
    "quire_loop_turn_seconds",
    "Turns of the scheduling loop, without its wait for events. No stream gets a token meanwhile."};
inline constexpr MetricInfo kTimeToFirstToken{"quire_ttft_seconds",
                                              "Arrival of a request to its first token."};
inline constexpr MetricInfo kInterTokenLatency{"quire_itl_seconds",
                                               "Between two tokens of a sequence."};
inline constexpr MetricInfo kRequestDuration{"quire_e2e_seconds",
                                             "Arrival of a request to its end."};
inline constexpr MetricInfo kQueueTime{"quire_queue_seconds",
                                       "Arrival of a request until its first slice was planned."};
inline constexpr MetricInfo kPrefillTime{"quire_prefill_seconds",
                                         "From a request's first slice to its first token."};
inline constexpr MetricInfo kDecodeTime{"quire_decode_seconds",
                                        "From a request's first token to its last one."};
inline constexpr MetricInfo kInferenceTime{"quire_inference_seconds",
                                           "From a request's first slice to its last token."};
inline constexpr MetricInfo kTimePerOutputToken{
    "quire_time_per_output_token_seconds",
    "From a request's first token to its last one, for each token but the first."};
inline constexpr MetricInfo kRequestPromptTokens{"quire_request_prompt_tokens",
                                                 "Prompt tokens of requests that ended."};
inline constexpr MetricInfo kRequestOutputTokens{"quire_request_output_tokens",
                                                 "Output tokens of sequences that ended."};
inline constexpr MetricInfo kRequestLongestOutput{
    "quire_request_longest_output_tokens", "Output tokens of the longest sequence of a request."};
inline constexpr MetricInfo kRequestMaxTokens{
    "quire_request_max_tokens", "Output tokens that requests may have in each sequence."};
inline constexpr MetricInfo kRequestSequences{"quire_request_sequences",
                                              "Sequences of requests that ended."};
inline constexpr MetricInfo kAdmissionRejectsTotal{
    "quire_admission_rejects_total",
    "Requests that were refused, by reason; invalid: the request itself was at fault; api_key: "
    "calls "
    "of any method without a valid key."};
inline constexpr MetricInfo kGrpcRequestsTotal{"quire_grpc_requests_total",
                                               "Calls that ended, by method and status code."};
inline constexpr MetricInfo kGrpcRequestDuration{"quire_grpc_request_seconds",
                                                 "Length of calls, by method."};
inline constexpr MetricInfo kGrpcOpenCalls{"quire_grpc_open_calls",
                                           "Calls that have begun and not ended, by method."};
inline constexpr MetricInfo kGroupLossesTotal{"quire_worker_group_losses_total",
                                              "Times that the worker group was lost."};
inline constexpr MetricInfo kStaleRepliesTotal{"quire_stale_replies_total",
                                               "Answers of steps that nobody waited for any more."};
inline constexpr MetricInfo kNonFiniteTotal{"quire_non_finite_logits_total",
                                            "Rows of logits that held a NaN or an infinity."};

inline constexpr MetricInfo kCrashSuspects{
    "quire_crash_suspects",
    "Requests that were computed in two crashes of workers and made no progress between them: they "
    "are computed alone, one at a time."};
inline constexpr MetricInfo kPoisonRequestsTotal{
    "quire_poison_requests_total",
    "Requests and pinned prefixes that ended because they crashed their workers each time."};

// Metrics that a worker serves on its own HTTP port. Metrics of the scheduler about its workers are
// above.
inline constexpr MetricInfo kWorkerInfo{
    "quire_worker_info",
    "Always 1; labels tell the worker's version, what computes, and which rank of how many it is."};
inline constexpr MetricInfo kWorkerReady{
    "quire_worker_ready", "1 while the model is loaded and the executor does not stand still."};
inline constexpr MetricInfo kWorkerLive{
    "quire_worker_live",
    "0 while the executor has stood still for longer than any work takes, and waits for no other "
    "rank, else 1."};
inline constexpr MetricInfo kWorkerPhase{"quire_worker_phase",
                                         "1 for what the worker does now, 0 for all else."};
inline constexpr MetricInfo kWorkerLoadRatio{"quire_worker_load_ratio",
                                             "Share of the model that is loaded, from 0 to 1."};
inline constexpr MetricInfo kWorkerWaitsForRank{
    "quire_worker_waits_for_rank",
    "The rank that an operation between ranks waits for at this moment; -1: none."};
inline constexpr MetricInfo kWorkerGroupEpoch{
    "quire_worker_group_epoch",
    "Number of the epoch that began last; the label tells the scheduler's incarnation, which all "
    "ranks of a group share. Missing before the first."};
inline constexpr MetricInfo kWorkerEpochsTotal{"quire_worker_epochs_total", "Epochs that began."};
inline constexpr MetricInfo kWorkerStepsTotal{"quire_worker_steps_total", "Steps executed."};
inline constexpr MetricInfo kWorkerStepDuration{
    "quire_worker_step_duration_seconds",
    "Parts of an executed step. build: checks, sequences and batch; forward: the layers; sample: "
    "logits to tokens; step: all three. Inside of them, swap: starting swaps and waiting for them, "
    "and copies of blocks; map: windows of --kv-backend=vmm; collective: operations between ranks, "
    "waiting for them included; "
    "compute: forward without those."};
inline constexpr MetricInfo kWorkerTokensTotal{
    "quire_worker_tokens_total", "Tokens that went through the layers, and tokens sampled."};
inline constexpr MetricInfo kWorkerSequences{"quire_worker_sequences",
                                             "Sequences that the worker knows."};
inline constexpr MetricInfo kWorkerKvBlocks{
    "quire_worker_kv_blocks",
    "KV blocks by memory (tier). device: named by block tables of sequences, shared ones once; "
    "host: filled in this epoch, whether or not they are still wanted."};
inline constexpr MetricInfo kWorkerKvBlocksCapacity{
    "quire_worker_kv_blocks_capacity",
    "KV blocks that the pools of this epoch have for sequences, by memory (tier)."};
inline constexpr MetricInfo kWorkerSwapBytesTotal{
    "quire_worker_swap_bytes_total",
    "Bytes of KV blocks that the worker copied to host memory (out) and back (in)."};
inline constexpr MetricInfo kWorkerSwapInFailuresTotal{
    "quire_worker_swap_in_failures_total",
    "KV blocks that were not brought back, since their place in host memory held something else."};
inline constexpr MetricInfo kWorkerWindowPlacesTotal{
    "quire_worker_window_places_total",
    "With --kv-backend=vmm: places in windows of sequences that came to show a block. found: had "
    "it "
    "since another sequence; mapped_ahead: beside an earlier step; mapped: in the step. "
    "taken_down: "
    "that no sequence had when the system's limit was reached."};
inline constexpr MetricInfo kWorkerWindowPlaces{"quire_worker_window_places",
                                                "Places in windows that show a block now."};
inline constexpr MetricInfo kWorkerWindowPlacesLimit{
    "quire_worker_window_places_limit",
    "Places in windows that can show a block at once, by the system's limit of mappings."};
inline constexpr MetricInfo kWorkerWindowRefusalsTotal{
    "quire_worker_window_refusals_total",
    "Steps that read through block tables, since the system allows no more mappings."};
inline constexpr MetricInfo kWorkerMemory{
    "quire_worker_memory_bytes",
    "Memory by what it is for. weights; kv: the pool of KV blocks; host: the pool for swapped "
    "ones; "
    "padding: what of these two only fills pages, with --kv-backend=vmm. Pools count as a whole, "
    "written or not."};
inline constexpr MetricInfo kWorkerScrubbedBytesTotal{
    "quire_worker_scrubbed_bytes_total",
    "Bytes of weights in main memory that were read to find those that have changed."};
inline constexpr MetricInfo kWorkerScrubPassesTotal{
    "quire_worker_scrub_passes_total",
    "Times that all weights in main memory were read, the first time without comparing."};

// Metrics of any process, by the names that Prometheus' own libraries use.
inline constexpr MetricInfo kProcessCpu{"process_cpu_seconds_total",
                                        "Processor time of the process, user and system."};
inline constexpr MetricInfo kProcessResidentMemory{"process_resident_memory_bytes",
                                                   "Main memory that the process holds."};
inline constexpr MetricInfo kProcessVirtualMemory{"process_virtual_memory_bytes",
                                                  "Addresses that the process has taken."};
inline constexpr MetricInfo kProcessStartTime{"process_start_time_seconds",
                                              "When the process began, in seconds since 1970."};
inline constexpr MetricInfo kProcessOpenFds{"process_open_fds", "Open files and sockets."};
inline constexpr MetricInfo kProcessMaxFds{"process_max_fds",
                                           "Files and sockets that may be open at once."};

inline constexpr MetricInfo kVllmRunning{"vllm:num_requests_running", "Requests running."};
inline constexpr MetricInfo kVllmWaiting{"vllm:num_requests_waiting", "Requests waiting."};
inline constexpr MetricInfo kVllmWaitingByReason{
    "vllm:num_requests_waiting_by_reason",
    "Requests waiting, by what they wait for: capacity, or something else (deferred)."};
inline constexpr MetricInfo kVllmKvUsage{"vllm:kv_cache_usage_perc",
                                         "Share of KV blocks in use, from 0 to 1."};
inline constexpr MetricInfo kVllmCacheConfig{"vllm:cache_config_info",
                                             "Always 1; labels tell the KV cache's geometry."};
inline constexpr MetricInfo kVllmPromptTokens{"vllm:prompt_tokens_total",
                                              "Prompt tokens, computed or found in cached blocks."};
inline constexpr MetricInfo kVllmGenerationTokens{"vllm:generation_tokens_total",
                                                  "Tokens generated."};
inline constexpr MetricInfo kVllmPrefixCacheQueries{
    "vllm:prefix_cache_queries_total", "Tokens of sequences that looked for cached blocks."};
inline constexpr MetricInfo kVllmPrefixCacheHits{"vllm:prefix_cache_hits_total",
                                                 "Tokens found in cached blocks."};
inline constexpr MetricInfo kVllmPreemptions{"vllm:num_preemptions_total", "Preemptions."};
inline constexpr MetricInfo kVllmSuccess{"vllm:request_success_total",
                                         "Requests ended, by finish reason."};
inline constexpr MetricInfo kVllmTimeToFirstToken{"vllm:time_to_first_token_seconds",
                                                  "Arrival of a request to its first token."};
inline constexpr MetricInfo kVllmInterTokenLatency{"vllm:inter_token_latency_seconds",
                                                   "Between two tokens of a sequence."};
inline constexpr MetricInfo kVllmQueueTime{"vllm:request_queue_time_seconds",
                                           "Arrival of a request until it is scheduled."};
inline constexpr MetricInfo kVllmPrefillTime{"vllm:request_prefill_time_seconds",
                                             "Scheduled to first token."};
inline constexpr MetricInfo kVllmDecodeTime{"vllm:request_decode_time_seconds",
                                            "First token to last token."};
inline constexpr MetricInfo kVllmInferenceTime{"vllm:request_inference_time_seconds",
                                               "Scheduled to last token."};
inline constexpr MetricInfo kVllmTimePerOutputToken{"vllm:request_time_per_output_token_seconds",
                                                    "Decode time for each token but the first."};
inline constexpr MetricInfo kVllmRequestPromptTokens{"vllm:request_prompt_tokens",
                                                     "Prompt tokens of requests."};
inline constexpr MetricInfo kVllmRequestGenerationTokens{"vllm:request_generation_tokens",
                                                         "Output tokens of sequences."};
inline constexpr MetricInfo kVllmRequestMaxGenerationTokens{
    "vllm:request_max_num_generation_tokens", "Output tokens of a request's longest sequence."};
inline constexpr MetricInfo kVllmRequestN{"vllm:request_params_n", "Sequences of requests."};
inline constexpr MetricInfo kVllmRequestMaxTokens{"vllm:request_params_max_tokens",
                                                  "max_tokens of requests."};
inline constexpr MetricInfo kVllmIterationTokens{"vllm:iteration_tokens_total",
                                                 "Tokens in a step."};
inline constexpr MetricInfo kVllmPromptTokensCached{"vllm:prompt_tokens_cached_total",
                                                    "Prompt tokens found in cached blocks."};
inline constexpr MetricInfo kVllmPromptTokensBySource{"vllm:prompt_tokens_by_source_total",
                                                      "Prompt tokens, by where K and V came from."};
inline constexpr MetricInfo kVllmRequestDuration{"vllm:e2e_request_latency_seconds",
                                                 "Arrival of a request to its end."};

}  // namespace metric
}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_METRIC_NAMES_H_
