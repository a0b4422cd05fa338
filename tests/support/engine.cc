#include "tests/support/engine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <variant>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/model/rope_config.h"
#include "common/step/merge_results.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"
#include "tests/support/rank_group.h"

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

absl::StatusOr<std::unique_ptr<KernelBackend>> MakeBackend(const EngineOptions& options) {
  if (!options.is_on_emulated_gpu) {
    return CreateCpuBackend({.num_threads = options.num_threads,
                             .isa = options.isa,
                             .quantization = options.quantization});
  }
  QUIRE_ASSIGN_OR_RETURN(const GpuLibrary library, GpuLibrary::Open("emu", 0));
  return CreateGpuBackend(library, {});
}

// Returns a path that no other engine uses.
std::string SocketPath() {
  static std::atomic<int> num_paths{0};
  return (std::filesystem::temp_directory_path() /
          absl::StrCat("quire-engine-", ::getpid(), "-", num_paths.fetch_add(1)))
      .string();
}

}  // namespace

absl::StatusOr<Engine::Rank> Engine::MakeRank(const std::string& model_dir,
                                              const EngineOptions& options,
                                              int32_t rank) {
  Rank made;
  QUIRE_ASSIGN_OR_RETURN(made.backend, MakeBackend(options));
  const RankPlace place = {.rank = rank, .size = options.num_ranks};
  QUIRE_ASSIGN_OR_RETURN(made.model,
                         options.has_dummy_weights
                             ? MakeDummyModel(model_dir, 0, *made.backend, place)
                             : LoadModel(model_dir, *made.backend, nullptr, place));
  if (options.num_ranks > 1) {
    QUIRE_ASSIGN_OR_RETURN(made.peers, PeerListener::AtPath(SocketPath(), options.num_ranks));
  }
  made.executor = std::make_unique<StepExecutor>(*made.model,
                                                 *made.backend,
                                                 KvCacheBudget{.bytes = kMaxKvCacheBytes,
                                                               .swap_space_bytes = kMaxKvCacheBytes,
                                                               .backend = options.kv_backend},
                                                 nullptr,
                                                 made.peers.get(),
                                                 rank == 0 ? options.observer : nullptr);
  return made;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const std::string& model_dir,
                                                       const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine);
  for (int32_t rank = 0; rank < options.num_ranks; ++rank) {
    QUIRE_ASSIGN_OR_RETURN(Rank made, MakeRank(model_dir, options, rank));
    engine->ranks_.push_back(std::move(made));
  }
  QUIRE_RETURN_IF_ERROR(engine->Reset(options));
  return engine;
}

absl::Status Engine::Reset(const EngineOptions& options) {
  StepLimits limits = LimitsOf(options, config());
  const StepExecutor& executor = *ranks_.front().executor;
  const DType kv_cache_dtype = options.kv_cache_dtype.value_or(config().dtype);
  QUIRE_ASSIGN_OR_RETURN(const KvCacheSpec spec,
                         executor.sizing().SpecFor(limits.block_size_tokens, kv_cache_dtype));
  limits.wants_next_blocks = executor.wants_next_blocks();
  limits.blocks_per_page = executor.sizing().BlocksPerPage(spec);
  EpochParams params{.scheduler_incarnation = 1,
                     .group_epoch = ++epoch_,
                     .limits = limits,
                     .kv_cache_dtype = kv_cache_dtype,
                     .rope_length = RopeLength(config().rope, limits.max_model_len),
                     .group_secret = std::string(kGroupSecretBytes, 's')};
  for (const Rank& rank : ranks_) {
    params.rendezvous.push_back(rank.executor->rendezvous());
  }
  // In parallel, because ranks wait for each other in BeginEpoch.
  std::vector<absl::Status> statuses(ranks_.size());
  OnAllRanks(static_cast<int32_t>(ranks_.size()), [&](int32_t rank) {
    const auto i = static_cast<size_t>(rank);
    statuses[i] = ranks_[i].executor->BeginEpoch(params);
  });
  for (const absl::Status& status : statuses) {
    QUIRE_RETURN_IF_ERROR(status);
  }
  core_ = std::make_unique<SchedulerCore>(options.core);
  core_->BeginEpoch(1, epoch_, limits);
  lets_workers_prepare_ = options.lets_workers_prepare;
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
  // Benchmarks measure steps of one rank, so this path avoids threads and copies.
  if (ranks_.size() == 1) {
    absl::StatusOr<const StepResult*> result = ranks_.front().executor->Execute(*plan);
    QUIRE_CHECK(result.ok());
    QUIRE_CHECK(core_->ApplyStepResult(**result).ok());
  } else {
    absl::StatusOr<StepResult> result = ExecuteOnAll(*plan);
    QUIRE_CHECK(result.ok());
    QUIRE_CHECK(core_->ApplyStepResult(*result).ok());
    last_timings_ = result->timings;
  }
  if (lets_workers_prepare_) {
    for (const Rank& rank : ranks_) {
      rank.executor->WhenAnswered();
    }
  }
  Record();
  return true;
}

absl::StatusOr<StepResult> Engine::ExecuteOnAll(const StepPlan& plan) {
  std::vector<absl::StatusOr<const StepResult*>> answers(ranks_.size(), nullptr);
  OnAllRanks(static_cast<int32_t>(ranks_.size()), [&](int32_t rank) {
    const auto i = static_cast<size_t>(rank);
    answers[i] = ranks_[i].executor->Execute(plan);
  });
  std::vector<StepResult> results;
  for (const absl::StatusOr<const StepResult*>& answer : answers) {
    QUIRE_RETURN_IF_ERROR(answer.status());
    results.push_back(**answer);
  }
  return MergeResults(std::move(results), plan.swap_ins);
}

// Simulates a scheduler whose reference to a host block is stale.
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
      answer.top_logprobs.push_back(token->top_logprobs);
    } else if (const auto* scored = std::get_if<PromptScored>(&event)) {
      PromptLogprobs& prompt = answers_[{scored->request_id, 0}].prompt;
      const PromptLogprobs& more = scored->prompt;
      QUIRE_CHECK_EQ(prompt.first_position + prompt.num_tokens(), more.first_position);
      prompt.num_top = more.num_top;
      prompt.logprobs.insert(prompt.logprobs.end(), more.logprobs.begin(), more.logprobs.end());
      prompt.top.insert(prompt.top.end(), more.top.begin(), more.top.end());
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
