// Every metric of every process: one table of names and meanings. Units are in the names (seconds,
// bytes, tokens); counters end in _total.
//
// Metrics whose names begin with "vllm:" copy our own metrics, for routers, autoscalers and boards
// that look for exactly these names. The copies are served at /metrics, never at /metrics/native.
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
    "1 while this scheduler stands by because another scheduler has the workers, else 0."};
inline constexpr MetricInfo kDraining{"quire_draining", "1 while the server shuts down, else 0."};
inline constexpr MetricInfo kKvBlocks{
    "quire_kv_blocks",
    "Usable KV blocks by memory (tier) and state. free: not in use and not cached; active: held by "
    "sequences; cached: free, but still found by the prefix cache; leaving: being copied to host "
    "memory; pending: released, but not free before the running step ends."};
inline constexpr MetricInfo kKvBlocksCapacity{"quire_kv_blocks_capacity",
                                              "Usable KV blocks by memory (tier)."};
inline constexpr MetricInfo kKvBlockOpsTotal{
    "quire_kv_block_ops_total",
    "Operations on KV blocks (op). alloc: taken from the free list; evict: allocated blocks that "
    "were cached; prefix_hit: found in the prefix cache and referenced; fork: referenced by a "
    "forked sequence; cow: copied before a write; swap_out, swap_in: copied to host memory and "
    "back."};
inline constexpr MetricInfo kKvBlockRefs{
    "quire_kv_block_refs",
    "References from block tables to KV blocks; a shared block counts once for each reference."};
inline constexpr MetricInfo kKvSharedBlocks{"quire_kv_shared_blocks",
                                            "KV blocks referenced more than once."};
inline constexpr MetricInfo kKvBlockBytes{
    "quire_kv_block_bytes", "Size of one KV block on one worker, all layers, K and V."};
inline constexpr MetricInfo kKvBlockTokens{"quire_kv_block_tokens",
                                           "Tokens that one KV block can hold."};
inline constexpr MetricInfo kKvTokens{
    "quire_kv_tokens",
    "Tokens in KV blocks by state. stored: tokens in active blocks, a shared block counted once; "
    "referenced: the same, a shared block counted once for each sequence; capacity: tokens that "
    "all blocks could store."};
inline constexpr MetricInfo kKvFragmentation{
    "quire_kv_fragmentation_ratio",
    "Share of the slots of active KV blocks that hold no token, from 0 to 1."};
inline constexpr MetricInfo kRequests{"quire_requests", "Requests in the server by state."};
inline constexpr MetricInfo kQueuedTokens{"quire_queued_tokens",
                                          "Prompt tokens of waiting requests."};
inline constexpr MetricInfo kRequestsTotal{"quire_requests_total", "Requests ended, by outcome."};
inline constexpr MetricInfo kTokensTotal{
    "quire_tokens_total",
    "Tokens by kind. prompt: prompt tokens computed; generated: tokens sampled; recomputed: tokens "
    "computed again."};
inline constexpr MetricInfo kPreemptionsTotal{
    "quire_preemptions_total", "Preemptions of running requests, by mode (recompute or swap)."};
inline constexpr MetricInfo kKvSwapBytesTotal{
    "quire_kv_swap_bytes_total",
    "Bytes of KV blocks that each worker was told to copy to host memory (out) and back (in)."};
inline constexpr MetricInfo kKvSwapInFailuresTotal{
    "quire_kv_swap_in_failures_total",
    "KV blocks that a worker could not swap in, because their place in host memory held other "
    "contents; their requests were recomputed."};
inline constexpr MetricInfo kPrefixCacheBlocks{
    "quire_prefix_cache_blocks", "KV blocks that the prefix cache can find, in use or free."};
inline constexpr MetricInfo kPinnedPrefixes{"quire_pinned_prefixes",
                                            "Prefixes that operators have pinned."};
inline constexpr MetricInfo kPinnedBlocks{"quire_pinned_kv_blocks",
                                          "KV blocks that pinned prefixes hold."};
inline constexpr MetricInfo kPrefixCacheTokensTotal{
    "quire_prefix_cache_tokens_total",
    "Known tokens of sequences that started, by result. hit: found in the prefix cache; miss: not "
    "found."};
inline constexpr MetricInfo kStepsTotal{"quire_steps_total", "Steps answered by the workers."};
inline constexpr MetricInfo kStepDuration{"quire_step_duration_seconds",
                                          "Durations of the parts of a step. The workers measure "
                                          "the parts named worker_, the scheduler the others."};
inline constexpr MetricInfo kStepSequences{"quire_step_batch_sequences", "Sequences in a step."};
inline constexpr MetricInfo kStepTokens{"quire_step_batch_tokens", "Tokens in a step."};
inline constexpr MetricInfo kLoopTurn{"quire_loop_turn_seconds",
                                      "Durations of the scheduling loop's turns, without its wait "
                                      "for events. No stream gets a token during a turn."};
inline constexpr MetricInfo kTimeToFirstToken{"quire_ttft_seconds",
                                              "Time from a request's arrival to its first token."};
inline constexpr MetricInfo kInterTokenLatency{"quire_itl_seconds",
                                               "Time between two tokens of a sequence."};
inline constexpr MetricInfo kRequestDuration{"quire_e2e_seconds",
                                             "Time from a request's arrival to its end."};
inline constexpr MetricInfo kQueueTime{
    "quire_queue_seconds", "Time from a request's arrival to the planning of its first slice."};
inline constexpr MetricInfo kPrefillTime{"quire_prefill_seconds",
                                         "Time from a request's first slice to its first token."};
inline constexpr MetricInfo kDecodeTime{"quire_decode_seconds",
                                        "Time from a request's first token to its last one."};
inline constexpr MetricInfo kInferenceTime{"quire_inference_seconds",
                                           "Time from a request's first slice to its last token."};
inline constexpr MetricInfo kTimePerOutputToken{
    "quire_time_per_output_token_seconds",
    "Time from a request's first token to its last one, per token after the first."};
inline constexpr MetricInfo kRequestPromptTokens{"quire_request_prompt_tokens",
                                                 "Prompt tokens of requests that ended."};
inline constexpr MetricInfo kRequestOutputTokens{"quire_request_output_tokens",
                                                 "Output tokens of sequences that ended."};
inline constexpr MetricInfo kRequestLongestOutput{
    "quire_request_longest_output_tokens", "Output tokens of the longest sequence of a request."};
inline constexpr MetricInfo kRequestMaxTokens{
    "quire_request_max_tokens",
    "max_tokens of requests, which limits the output tokens of each sequence."};
inline constexpr MetricInfo kRequestSequences{"quire_request_sequences",
                                              "Sequences of requests that ended."};
inline constexpr MetricInfo kAdmissionRejectsTotal{
    "quire_admission_rejects_total",
    "Refused requests, by reason. invalid: the request itself is invalid; api_key: calls of any "
    "method without a valid key."};
inline constexpr MetricInfo kGrpcRequestsTotal{"quire_grpc_requests_total",
                                               "Calls that ended, by method and status code."};
inline constexpr MetricInfo kGrpcRequestDuration{"quire_grpc_request_seconds",
                                                 "Duration of calls, by method."};
inline constexpr MetricInfo kGrpcOpenCalls{"quire_grpc_open_calls",
                                           "Calls that have not ended yet, by method."};
inline constexpr MetricInfo kGroupLossesTotal{"quire_worker_group_losses_total",
                                              "Number of times that the worker group was lost."};
inline constexpr MetricInfo kStaleRepliesTotal{
    "quire_stale_replies_total",
    "Step results that arrived when the scheduler no longer waited for them."};
inline constexpr MetricInfo kNonFiniteTotal{"quire_non_finite_logits_total",
                                            "Rows of logits that held a NaN or an infinity."};

inline constexpr MetricInfo kCrashSuspects{
    "quire_crash_suspects",
    "Requests suspected of crashing workers: each was computed in two crashes and made no progress "
    "between them. They are computed alone, one at a time."};
inline constexpr MetricInfo kPoisonRequestsTotal{
    "quire_poison_requests_total",
    "Requests and pinned prefixes that ended because they crashed their workers repeatedly."};
inline constexpr MetricInfo kKvEventBatchesTotal{
    "quire_kv_event_batches_total",
    "Batches of KV events (--kv-events-endpoint). published: handed to the thread that "
    "sends them; dropped: that thread was too slow, so that their numbers are missing for all."};

// Metrics that a worker serves on its own HTTP port.
inline constexpr MetricInfo kWorkerInfo{
    "quire_worker_info",
    "Always 1; labels tell the worker's version, backend, rank and number of ranks."};
inline constexpr MetricInfo kWorkerReady{
    "quire_worker_ready",
    "1 while the model is loaded, the executor is not stuck and no scheduler refuses the worker, "
    "else 0."};
inline constexpr MetricInfo kWorkerLive{
    "quire_worker_live",
    "0 while the executor is stuck: it has made no progress for longer than any work takes, and "
    "does not wait for another rank. Else 1."};
inline constexpr MetricInfo kWorkerPhase{"quire_worker_phase",
                                         "1 for the worker's current phase, 0 for all others."};
inline constexpr MetricInfo kWorkerLoadRatio{"quire_worker_load_ratio",
                                             "Share of the model that is loaded, from 0 to 1."};
inline constexpr MetricInfo kWorkerWaitsForRank{
    "quire_worker_waits_for_rank",
    "Rank that the current operation between ranks waits for; -1: none."};
inline constexpr MetricInfo kWorkerGroupEpoch{
    "quire_worker_group_epoch",
    "Number of the latest epoch; the label tells the scheduler's incarnation, which all ranks of a "
    "group share. Absent before the first epoch."};
inline constexpr MetricInfo kWorkerEpochsTotal{"quire_worker_epochs_total", "Epochs that began."};
inline constexpr MetricInfo kWorkerStepsTotal{"quire_worker_steps_total", "Steps executed."};
inline constexpr MetricInfo kWorkerPreparedStepsTotal{
    "quire_worker_prepared_steps_total",
    "Steps that the worker predicted, so that their inputs were on the GPU already; 0 on a CPU."};
inline constexpr MetricInfo kWorkerStepDuration{
    "quire_worker_step_duration_seconds",
    "Durations of the parts of an executed step. build: checking the plan and building the batch; "
    "forward: the layers; sample: from logits to tokens; step: the sum of these three. Parts "
    "within these, swap: starting swaps, waiting for them, and copying blocks; map: mapping "
    "windows (--kv-backend=vmm); collective: operations between ranks, waiting included; compute: "
    "forward without collective."};
inline constexpr MetricInfo kWorkerTokensTotal{
    "quire_worker_tokens_total", "Tokens that went through the layers, and tokens sampled."};
inline constexpr MetricInfo kWorkerSequences{"quire_worker_sequences",
                                             "Sequences that the worker knows."};
inline constexpr MetricInfo kWorkerKvBlocks{
    "quire_worker_kv_blocks",
    "KV blocks by memory (tier). device: in the block tables of sequences, a shared block counted "
    "once; host: written in this epoch, even if no longer needed."};
inline constexpr MetricInfo kWorkerKvBlocksCapacity{
    "quire_worker_kv_blocks_capacity",
    "KV blocks for sequences in the pools of this epoch, by memory (tier)."};
inline constexpr MetricInfo kWorkerSwapBytesTotal{
    "quire_worker_swap_bytes_total",
    "Bytes of KV blocks that the worker copied to host memory (out) and back (in)."};
inline constexpr MetricInfo kWorkerSwapInFailuresTotal{
    "quire_worker_swap_in_failures_total",
    "KV blocks that could not be swapped in, because their place in host memory held other "
    "contents."};
inline constexpr MetricInfo kWorkerWindowPlacesTotal{
    "quire_worker_window_places_total",
    "With --kv-backend=vmm: places in the windows of sequences, by how they were mapped to a "
    "block. found: still mapped for an earlier sequence; mapped_ahead: mapped during an earlier "
    "step; mapped: mapped while the step waited. taken_down: unused places that were unmapped at "
    "the system's limit of mappings."};
inline constexpr MetricInfo kWorkerWindowPlaces{"quire_worker_window_places",
                                                "Places in windows that are mapped to a block."};
inline constexpr MetricInfo kWorkerWindowPlacesLimit{
    "quire_worker_window_places_limit",
    "Places in windows that can be mapped at the same time under the system's limit of mappings."};
inline constexpr MetricInfo kWorkerWindowRefusalsTotal{
    "quire_worker_window_refusals_total",
    "Steps that read through block tables instead of windows, because the system's limit of "
    "mappings was reached."};
inline constexpr MetricInfo kWorkerMemory{
    "quire_worker_memory_bytes",
    "Memory by purpose (kind). weights: the model's weights; kv: the pool of KV blocks; host: the "
    "pool of swapped blocks; padding: the part of both pools that only fills pages "
    "(--kv-backend=vmm). Pools count in full, written or not."};
inline constexpr MetricInfo kWorkerScrubbedBytesTotal{
    "quire_worker_scrubbed_bytes_total",
    "Bytes of weights in main memory that the scrubber has read to find changed weights."};
inline constexpr MetricInfo kWorkerScrubPassesTotal{
    "quire_worker_scrub_passes_total",
    "Passes of the scrubber over all weights in main memory. The first pass has nothing to compare "
    "with."};

// Metrics of any process, under the names that Prometheus' own libraries use.
inline constexpr MetricInfo kProcessCpu{"process_cpu_seconds_total",
                                        "CPU time of the process, user plus system."};
inline constexpr MetricInfo kProcessResidentMemory{"process_resident_memory_bytes",
                                                   "Main memory that the process holds."};
inline constexpr MetricInfo kProcessVirtualMemory{"process_virtual_memory_bytes",
                                                  "Virtual memory size of the process."};
inline constexpr MetricInfo kProcessStartTime{
    "process_start_time_seconds", "Start time of the process, in seconds since 1970-01-01 UTC."};
inline constexpr MetricInfo kProcessOpenFds{"process_open_fds", "Open files and sockets."};
inline constexpr MetricInfo kProcessMaxFds{"process_max_fds",
                                           "Maximum number of open files and sockets."};

inline constexpr MetricInfo kVllmRunning{"vllm:num_requests_running", "Requests running."};
inline constexpr MetricInfo kVllmWaiting{"vllm:num_requests_waiting", "Requests waiting."};
inline constexpr MetricInfo kVllmWaitingByReason{
    "vllm:num_requests_waiting_by_reason",
    "Requests waiting, by reason: capacity, or another one (deferred)."};
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
inline constexpr MetricInfo kVllmTimeToFirstToken{
    "vllm:time_to_first_token_seconds", "Time from a request's arrival to its first token."};
inline constexpr MetricInfo kVllmInterTokenLatency{"vllm:inter_token_latency_seconds",
                                                   "Time between two tokens of a sequence."};
inline constexpr MetricInfo kVllmQueueTime{
    "vllm:request_queue_time_seconds",
    "Time from a request's arrival until it is first scheduled."};
inline constexpr MetricInfo kVllmPrefillTime{
    "vllm:request_prefill_time_seconds",
    "Time from a request's first scheduling to its first token."};
inline constexpr MetricInfo kVllmDecodeTime{"vllm:request_decode_time_seconds",
                                            "Time from a request's first token to its last one."};
inline constexpr MetricInfo kVllmInferenceTime{
    "vllm:request_inference_time_seconds",
    "Time from a request's first scheduling to its last token."};
inline constexpr MetricInfo kVllmTimePerOutputToken{
    "vllm:request_time_per_output_token_seconds",
    "Time from a request's first token to its last one, per token after the first."};
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
inline constexpr MetricInfo kVllmPromptTokensBySource{
    "vllm:prompt_tokens_by_source_total", "Prompt tokens, by the source of their K and V."};
inline constexpr MetricInfo kVllmRequestDuration{"vllm:e2e_request_latency_seconds",
                                                 "Time from a request's arrival to its end."};

inline constexpr MetricInfo kGatewayRequestsTotal{
    "quire_gateway_requests_total",
    "HTTP requests ended, by route and status code. 499: the client was gone before the end of its "
    "answer."};
inline constexpr MetricInfo kGatewayStreams{
    "quire_gateway_streams", "Streams from the scheduler that HTTP requests wait for or read."};
inline constexpr MetricInfo kGatewayFirstByteSeconds{
    "quire_gateway_time_to_first_byte_seconds",
    "Time from a whole HTTP request to the first byte of its answer, by route."};
inline constexpr MetricInfo kGatewayResumedStreamsTotal{
    "quire_gateway_resumed_streams_total",
    "Streams that went on after the scheduler or the connection to it was lost."};
inline constexpr MetricInfo kGatewayTemplateSeconds{"quire_gateway_template_seconds",
                                                    "Time to render a chat template."};

}  // namespace metric
}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_METRIC_NAMES_H_
