#include "tests/support/engine.h"

#include <algorithm>
#include <variant>

#include "common/base/check.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "kernels/cpu/cpu_backend.h"

namespace quire {
namespace {

constexpr int64_t kMaxKvCacheBytes = int64_t{8} << 30;

StepLimits LimitsOf(const EngineOptions& options, const ModelConfig& config) {
  StepLimits limits;
  limits.block_size_tokens = options.block_size_tokens;
  limits.max_sequences = options.max_sequences;
  limits.max_tokens_per_step = options.max_tokens_per_step;
  limits.max_model_len =
      options.max_model_len > 0 ? options.max_model_len : config.max_position_embeddings;
  limits.vocab_size = config.vocab_size;
  limits.num_host_blocks = options.num_host_blocks;
  limits.sliding_window = options.frees_behind_window ? WindowOfAllLayers(config) : 0;
  limits.num_blocks =
      options.num_blocks > 0
          ? options.num_blocks
          : 1 + options.max_sequences * DivCeil(limits.max_model_len, limits.block_size_tokens);
  return limits;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const std::string& model_dir,
                                                       const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine);
  QUIRE_ASSIGN_OR_RETURN(
      engine->backend_, CreateCpuBackend({.num_threads = options.num_threads, .isa = options.isa}));
  QUIRE_ASSIGN_OR_RETURN(engine->model_, LoadModel(model_dir, *engine->backend_, nullptr));
  engine->executor_ = std::make_unique<StepExecutor>(
      *engine->model_,
      *engine->backend_,
      KvCacheBudget{.bytes = kMaxKvCacheBytes, .swap_space_bytes = kMaxKvCacheBytes});
  QUIRE_RETURN_IF_ERROR(engine->Reset(options));
  return engine;
}

absl::Status Engine::Reset(const EngineOptions& options) {
  const StepLimits limits = LimitsOf(options, model_->config());
  ++epoch_;
  QUIRE_RETURN_IF_ERROR(executor_->BeginEpoch(
      {.scheduler_incarnation = 1,
       .group_epoch = epoch_,
       .limits = limits,
       .kv_cache_dtype = options.kv_cache_dtype.value_or(model_->config().dtype)}));
  core_ = std::make_unique<SchedulerCore>(options.core);
  core_->BeginEpoch(1, epoch_, limits);
  stale_swap_in_every_ = options.stale_swap_in_every;
  num_swap_ins_ = 0;
  answers_.clear();
  return absl::OkStatus();
}

void Engine::Add(Request request) {
  QUIRE_CHECK(core_->AddRequest(std::move(request)) == AddOutcome::kQueued);
}

bool Engine::Step() {
  std::optional<StepPlan> plan = core_->PlanStep(++now_);
  if (!plan.has_value()) {
    Record();
    return false;
  }
  last_num_slices_ = static_cast<int32_t>(plan->slices.size());
  last_num_tokens_ = 0;
  for (const SequenceSlice& slice : plan->slices) {
    last_num_tokens_ += slice.num_tokens;
  }
  SpoilSwapIns(&*plan);
  absl::StatusOr<const StepResult*> result = executor_->Execute(*plan);
  QUIRE_CHECK(result.ok());
  QUIRE_CHECK(core_->ApplyStepResult(**result).ok());
  Record();
  return true;
}

// As if the scheduler remembered a place in host memory that was given to others since.
void Engine::SpoilSwapIns(StepPlan* plan) {
  for (BlockSwapIn& swap : plan->swap_ins) {
    if (stale_swap_in_every_ > 0 && ++num_swap_ins_ % stale_swap_in_every_ == 0) {
      --swap.generation;
    }
  }
}

void Engine::Record() {
  for (const OutputEvent& event : core_->TakeEvents()) {
    if (const auto* token = std::get_if<TokenCommitted>(&event)) {
      Answer& answer = answers_[{token->request_id, token->sequence_index}];
      QUIRE_CHECK_EQ(static_cast<size_t>(token->token_index), answer.token_ids.size());
      answer.token_ids.push_back(token->token_id);
      answer.logprobs.push_back(token->logprob);
    } else {
      const auto& finished = std::get<SequenceFinished>(event);
      answers_[{finished.request_id, finished.sequence_index}].reason = finished.reason;
    }
  }
}

const Answers& Engine::RunToEnd() {
  while (Step()) {
  }
  return answers_;
}

}  // namespace quire
