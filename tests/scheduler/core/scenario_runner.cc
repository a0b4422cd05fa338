#include "tests/scheduler/core/scenario_runner.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "tests/support/requests.h"

namespace quire {
namespace {

std::string NameOf(uint64_t id, int32_t sequence_index) {
  return absl::StrCat(id, "/", sequence_index);
}

std::string Describe(AddOutcome outcome) {
  switch (outcome) {
    case AddOutcome::kQueued:
      return "queued";
    case AddOutcome::kQueueFull:
      return "refused: queue full";
    case AddOutcome::kQueueTokensFull:
      return "refused: queue has too many tokens";
    case AddOutcome::kTenantFull:
      return "refused: its tenant has too much waiting";
    case AddOutcome::kDeadlineUnreachable:
      return "refused: deadline cannot be met";
    case AddOutcome::kTooLong:
      return "refused: too long";
    case AddOutcome::kNeverFits:
      return "refused: never fits";
  }
  return "?";
}

std::string Describe(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "aborted";
    case FinishReason::kExpiredQueued:
      return "expired while queued";
    case FinishReason::kExpiredRunning:
      return "expired while running";
    case FinishReason::kUnreachable:
      return "deadline cannot be met";
    case FinishReason::kNonFinite:
      return "not finite";
    case FinishReason::kNoCapacity:
      return "no capacity";
    case FinishReason::kWorkerCrash:
      return "crashed its workers";
  }
  return "?";
}

std::string Describe(const PinResult& result) {
  switch (result.outcome) {
    case PinOutcome::kAccepted:
      return "accepted";
    case PinOutcome::kAlreadyPinned:
      return absl::StrCat("there already as ", result.id.value());
    case PinOutcome::kDisabled:
      return "refused: no prefix cache";
    case PinOutcome::kNoLimits:
      return "refused: no worker so far";
    case PinOutcome::kTooMany:
      return "refused: too many";
    case PinOutcome::kTooShort:
      return "refused: too short";
    case PinOutcome::kTooLong:
      return "refused: too long";
    case PinOutcome::kExceedsShare:
      return "refused: more than its share";
    case PinOutcome::kStarvesRequest:
      return "refused: a live request needs the blocks";
  }
  return "?";
}

std::string Describe(PrefixState state) {
  switch (state) {
    case PrefixState::kWaiting:
      return "waiting";
    case PrefixState::kComputing:
      return "computing";
    case PrefixState::kPinned:
      return "pinned";
  }
  return "?";
}

std::string Describe(const OutputEvent& event) {
  if (const auto* token = std::get_if<TokenCommitted>(&event)) {
    return absl::StrCat("token ",
                        NameOf(token->request_id.value(), token->sequence_index),
                        " [",
                        token->token_index,
                        "] ",
                        token->token_id,
                        "\n");
  }
  const auto& finished = std::get<SequenceFinished>(event);
  return absl::StrCat("finished ",
                      NameOf(finished.request_id.value(), finished.sequence_index),
                      ": ",
                      Describe(finished.reason),
                      " after ",
                      finished.num_output_tokens,
                      finished.is_last_of_request ? ", the last\n" : "\n");
}

}  // namespace

ScenarioRunner::ScenarioRunner()
    : commands_{
          {"config", [this](const ScenarioCommand& c) { return Config(c); }},
          {"add", [this](const ScenarioCommand& c) { return Add(c); }},
          {"abort", [this](const ScenarioCommand& c) { return Abort(c); }},
          {"finish", [this](const ScenarioCommand& c) { return Finish(c); }},
          {"pin", [this](const ScenarioCommand& c) { return Pin(c); }},
          {"unpin", [this](const ScenarioCommand& c) { return Unpin(c); }},
          {"prefixes", [this](const ScenarioCommand& c) { return Prefixes(c); }},
          {"advance", [this](const ScenarioCommand& c) { return Advance(c); }},
          {"expire", [this](const ScenarioCommand& c) { return Expire(c); }},
          {"plan", [this](const ScenarioCommand& c) { return Plan(c); }},
          {"apply", [this](const ScenarioCommand& c) { return Apply(c); }},
          {"step", [this](const ScenarioCommand& c) { return Step(c); }},
          {"run", [this](const ScenarioCommand& c) { return RunAll(c); }},
          {"lose_workers", [this](const ScenarioCommand& c) { return LoseWorkers(c); }},
          {"begin_epoch", [this](const ScenarioCommand& c) { return BeginEpoch(c); }},
          {"stats", [this](const ScenarioCommand& c) { return Stats(c); }},
      } {}

std::string ScenarioRunner::Run(const ScenarioCommand& command) {
  auto it = commands_.find(command.name());
  if (it == commands_.end()) {
    return absl::StrCat("unknown command ", command.name(), "\n");
  }
  if (!core_.has_value() && command.name() != "config") {
    return "config comes first\n";
  }
  std::string output = it->second(command);
  output += TakeEvents();
  core_->CheckInvariants();
  return output;
}

std::string ScenarioRunner::Config(const ScenarioCommand& command) {
  CoreConfig config;
  config.max_queued_requests =
      static_cast<int32_t>(command.Int("max_queued_requests", config.max_queued_requests));
  config.max_queued_tokens = command.Int("max_queued_tokens", config.max_queued_tokens);
  config.watermark = command.Number("watermark", 0.0);
  config.prefix_caching = command.Text("prefix_caching", "off") == "on";
  core_.emplace(config);
  worker_.reset();
  plan_.reset();
  now_ = 0;
  group_epoch_ = 0;
  limits_ = {.num_blocks = 17,
             .block_size_tokens = 4,
             .max_sequences = 8,
             .max_tokens_per_step = 64,
             .max_model_len = 64,
             .vocab_size = 1000};
  ReadLimits(command);
  return command.Text("workers", "ready") == "ready" ? BeginEpoch(command) : "ok\n";
}

// A scenario names usable blocks only, so the null block is added here.
void ScenarioRunner::ReadLimits(const ScenarioCommand& command) {
  auto read = [&command](const char* key, int32_t& field, int32_t offset = 0) {
    field = static_cast<int32_t>(command.Int(key, field - offset)) + offset;
  };
  read("blocks", limits_.num_blocks, 1);
  read("block_size", limits_.block_size_tokens);
  read("max_sequences", limits_.max_sequences);
  read("max_tokens_per_step", limits_.max_tokens_per_step);
  read("max_model_len", limits_.max_model_len);
  read("sliding_window", limits_.sliding_window);
}

std::string ScenarioRunner::Add(const ScenarioCommand& command) {
  RequestSpec spec{.id = static_cast<uint64_t>(command.Int("id", 1)),
                   .prompt = static_cast<int32_t>(command.Int("prompt", 1)),
                   .max_tokens = static_cast<int32_t>(command.Int("max_tokens", 4)),
                   .num_sequences = static_cast<int32_t>(command.Int("n", 1)),
                   .min_tokens = static_cast<int32_t>(command.Int("min_tokens", 0)),
                   .stop_token_ids = command.Ints("stop"),
                   .deadline = command.Int("deadline", kInfiniteFuture)};
  return Describe(core_->AddRequest(MakeRequest(spec, limits_.vocab_size))) + "\n";
}

std::string ScenarioRunner::Abort(const ScenarioCommand& command) {
  bool was_live = core_->AbortRequest(RequestId(static_cast<uint64_t>(command.Int("id", 1))));
  return was_live ? "" : "not live\n";
}

std::string ScenarioRunner::Finish(const ScenarioCommand& command) {
  RequestId id(static_cast<uint64_t>(command.Int("id", 1)));
  bool was_live = core_->FinishSequence(id, static_cast<int32_t>(command.Int("sequence", 0)));
  return was_live ? "" : "not live\n";
}

// The tokens are the prompt of a request with the named id.
std::string ScenarioRunner::Pin(const ScenarioCommand& command) {
  const RequestSpec like = {.id = static_cast<uint64_t>(command.Int("like", 1)),
                            .prompt = static_cast<int32_t>(command.Int("tokens", 1))};
  const PinResult result = core_->PinPrefix(RequestId(static_cast<uint64_t>(command.Int("id", 1))),
                                            MakeRequest(like, limits_.vocab_size).prompt_token_ids,
                                            "");
  return Describe(result) + "\n";
}

std::string ScenarioRunner::Unpin(const ScenarioCommand& command) {
  const RequestId id(static_cast<uint64_t>(command.Int("id", 1)));
  return core_->UnpinPrefix(id) ? "" : "no such prefix\n";
}

std::string ScenarioRunner::Prefixes(const ScenarioCommand&) {
  std::string output;
  for (const PrefixInfo& info : core_->prefixes()) {
    absl::StrAppend(&output,
                    "prefix ",
                    info.id.value(),
                    ": ",
                    Describe(info.state),
                    ", ",
                    info.num_tokens,
                    " tokens in ",
                    info.num_blocks,
                    " blocks\n");
  }
  return absl::StrCat(output, core_->stats().num_pinned_blocks, " blocks are pinned\n");
}

std::string ScenarioRunner::Advance(const ScenarioCommand& command) {
  now_ += command.Int("by", 1);
  return "";
}

std::string ScenarioRunner::Expire(const ScenarioCommand&) {
  core_->ExpireRequests(now_);
  return "";
}

std::string ScenarioRunner::Plan(const ScenarioCommand&) {
  std::string output = PlanQuietly();
  return output + (plan_.has_value() ? DescribePlan(*plan_) : "nothing to do\n");
}

// Plans a step. Returns the events, among them the requests that expired before the plan.
std::string ScenarioRunner::PlanQuietly() {
  plan_ = core_->PlanStep(now_);
  if (plan_.has_value()) {
    for (const SequenceIntroduction& introduction : plan_->introductions) {
      name_of_[introduction.handle] =
          NameOf(introduction.sampling.seed, introduction.sequence_index);
    }
  }
  return TakeEvents();
}

std::string ScenarioRunner::Apply(const ScenarioCommand& command) {
  std::string not_finite = command.Text("not_finite", "");
  if (!plan_.has_value()) {
    return "no plan to answer\n";
  }
  absl::StatusOr<StepResult> result = worker_->Execute(*plan_);
  if (!result.ok()) {
    return absl::StrCat("worker refuses: ", result.status().ToString(), "\n");
  }
  for (SampledToken& sampled : result->sampled) {
    sampled.finite = name_of_[sampled.handle] != not_finite;
  }
  absl::Status status = core_->ApplyStepResult(*result);
  plan_.reset();
  return status.ok() ? "" : absl::StrCat("core refuses: ", status.ToString(), "\n");
}

std::string ScenarioRunner::Step(const ScenarioCommand& command) {
  std::string output = Plan(command);
  return plan_.has_value() ? output + Apply(command) : output;
}

// Steps until the core has no work, and returns the events alone.
std::string ScenarioRunner::RunAll(const ScenarioCommand& command) {
  std::string output;
  int32_t num_steps = 0;
  while (num_steps < 1000) {
    output += PlanQuietly();
    if (!plan_.has_value()) {
      break;
    }
    ++num_steps;
    output += Apply(command) + TakeEvents();
    core_->CheckInvariants();
  }
  return absl::StrCat(output, "idle after ", num_steps, " steps\n");
}

std::string ScenarioRunner::LoseWorkers(const ScenarioCommand&) {
  core_->OnWorkersLost();
  worker_.reset();
  plan_.reset();
  return "";
}

std::string ScenarioRunner::BeginEpoch(const ScenarioCommand& command) {
  ReadLimits(command);
  worker_.emplace(limits_);
  core_->BeginEpoch(1, ++group_epoch_, limits_);
  return absl::StrCat("epoch ", group_epoch_, "\n");
}

std::string ScenarioRunner::Stats(const ScenarioCommand&) {
  CoreStats stats = core_->stats();
  return absl::StrCat("waiting ",
                      stats.num_waiting_requests,
                      ", running ",
                      stats.num_running_requests,
                      "; blocks free ",
                      stats.num_free_blocks,
                      ", used ",
                      stats.num_used_blocks,
                      ", pending ",
                      stats.num_pending_blocks,
                      "; stored ",
                      stats.num_stored_tokens,
                      " tokens; preempted ",
                      stats.num_preemptions,
                      ", recomputed ",
                      stats.num_recomputed_tokens,
                      " tokens\n");
}

std::string ScenarioRunner::DescribePlan(const StepPlan& plan) {
  std::string text = absl::StrCat("plan ", plan.header.step_id, "\n");
  for (const BlockSwapOut& swap : plan.swap_outs) {
    absl::StrAppend(&text, "  swap out ", swap.block, " to ", swap.host_block, "\n");
  }
  for (const BlockSwapIn& swap : plan.swap_ins) {
    absl::StrAppend(&text, "  swap in ", swap.host_block, " to ", swap.block, "\n");
  }
  for (const BlockCopy& copy : plan.copies) {
    absl::StrAppend(&text, "  copy ", copy.src, " to ", copy.dst, "\n");
  }
  for (const SequenceIntroduction& introduction : plan.introductions) {
    std::string name = NameOf(introduction.sampling.seed, introduction.sequence_index);
    name_of_[introduction.handle] = name;
    absl::StrAppend(&text,
                    "  new ",
                    name,
                    " as h",
                    introduction.handle,
                    ": ",
                    introduction.token_ids.size(),
                    " tokens");
    if (introduction.num_computed_tokens > 0) {
      absl::StrAppend(&text,
                      ", ",
                      introduction.num_computed_tokens,
                      " of them in blocks [",
                      absl::StrJoin(introduction.block_ids, " "),
                      "]");
    }
    text += "\n";
  }
  for (const SequenceSlice& slice : plan.slices) {
    absl::StrAppend(&text, "  slice ", name_of_[slice.handle], ": ", slice.num_tokens, " tokens");
    if (!slice.new_block_ids.empty()) {
      absl::StrAppend(&text, ", blocks [", absl::StrJoin(slice.new_block_ids, " "), "]");
    }
    text += "\n";
  }
  for (SequenceHandle handle : plan.releases) {
    absl::StrAppend(&text, "  release h", handle, " (", name_of_[handle], ")\n");
  }
  return text;
}

std::string ScenarioRunner::TakeEvents() {
  std::string text;
  for (const OutputEvent& event : core_->TakeEvents()) {
    text += Describe(event);
  }
  return text;
}

}  // namespace quire
