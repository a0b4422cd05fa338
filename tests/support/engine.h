// Engine is the whole server without RPC: a SchedulerCore and a StepExecutor in one thread that
// passes plans and results between them. With several ranks, each step starts a thread for each
// rank. Tests of answers and benchmarks of steps use Engine.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_TESTS_SUPPORT_ENGINE_H_
#define QUIRE_TESTS_SUPPORT_ENGINE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"
#include "kernels/collective/peer_listener.h"
#include "kernels/cpu/quantization.h"
#include "scheduler/core/scheduler_core.h"
#include "worker/model/model.h"
#include "worker/runtime/step_executor.h"

namespace quire {

struct EngineOptions {
  // Only Create reads the fields up to `observer`; Reset ignores them.
  int num_threads = 1;  // threads of each rank
  int32_t num_ranks = 1;
  KvBackend kv_backend = KvBackend::kPaged;
  bool is_on_emulated_gpu = false;  // instead of the CPU
  std::string isa;  // instruction set of the kernels; "": the best one that this machine has
  CpuQuantization quantization = CpuQuantization::kNone;  // of plain weights, at loading
  bool has_dummy_weights = false;
  StepObserver* observer = nullptr;  // hears of rank 0's steps
  int32_t num_blocks = 0;  // null block included; 0: enough for max_sequences at max_model_len
  int32_t block_size_tokens = 16;
  int32_t max_sequences = 256;
  int32_t max_tokens_per_step = 512;
  int32_t max_model_len = 0;  // 0: the model's own limit
  int32_t num_host_blocks = 0;
  // Every n-th swap-in names a stale generation of its host block; 0: none does.
  int64_t stale_swap_in_every = 0;
  CoreConfig core = {};
  bool lets_workers_prepare = true;     // next steps, as while they wait for a scheduler's plan
  bool frees_behind_window = true;      // has an effect only if all layers have a sliding window
  std::optional<DType> kv_cache_dtype;  // nullopt: the type of the model's weights
};

// The output of one sequence.
struct Answer {
  std::vector<TokenId> token_ids;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top_logprobs;
  FinishReason reason = FinishReason::kAborted;
  PromptLogprobs prompt;  // in the answer with sequence index 0, if the request asked for them

  friend bool operator==(const Answer&, const Answer&) = default;
};

// Answers by (request, sequence index).
using Answers = std::map<std::pair<RequestId, int32_t>, Answer>;

class Engine {
 public:
  // Loads the model. Errors: those of loading, of the backend and of BeginEpoch.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const std::string& model_dir,
                                                        const EngineOptions& options);

  // Drops all sequences and begins a new epoch with other limits; the model stays loaded.
  absl::Status Reset(const EngineOptions& options);

  // Adds a request. Aborts the process if the core refuses it, which is a mistake of the test.
  void Add(Request request);

  // Plans, executes and applies one step. Returns false if there was no step to plan. Aborts the
  // process if the executor refuses the plan, or if the core refuses the result.
  bool Step();

  // Steps until no work is left. Returns the answers of all sequences since the last Reset.
  const Answers& RunToEnd();

  const ModelConfig& config() const { return ranks_.front().model->config(); }
  CoreStats stats() const { return core_->stats(); }
  std::string backend_name() const { return ranks_.front().backend->name(); }
  // Number of slices in the last step.
  int32_t last_num_slices() const { return last_num_slices_; }
  // Number of tokens in the last step.
  int32_t last_num_tokens() const { return last_num_tokens_; }
  const StepTimings& last_timings() const { return last_timings_; }

 private:
  struct Rank {
    std::unique_ptr<KernelBackend> backend;
    std::unique_ptr<Model> model;
    std::unique_ptr<PeerListener> peers;  // null if there is one rank
    std::unique_ptr<StepExecutor> executor;
  };

  Engine() = default;
  static absl::StatusOr<Rank> MakeRank(const std::string& model_dir,
                                       const EngineOptions& options,
                                       int32_t rank);
  absl::StatusOr<StepResult> ExecuteOnAll(const StepPlan& plan);
  void Record();
  void SpoilSwapIns(StepPlan* plan);

  std::vector<Rank> ranks_;
  std::unique_ptr<SchedulerCore> core_;
  uint64_t epoch_ = 0;
  Instant now_ = 0;
  bool lets_workers_prepare_ = true;
  int64_t stale_swap_in_every_ = 0;
  int64_t num_swap_ins_ = 0;
  int32_t last_num_slices_ = 0;
  int32_t last_num_tokens_ = 0;
  StepTimings last_timings_;
  Answers answers_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_ENGINE_H_
