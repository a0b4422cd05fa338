#include "scheduler/sim/static_batch_engine.h"

#include <algorithm>

namespace quire {

int32_t MaxBatchRequests(const SimConfig& config) {
  const int32_t num_sequences =
      std::min(config.platform.num_kv_slots() / config.max_model_len, config.max_sequences);
  return num_sequences / config.group_size();
}

StaticBatchEngine::StaticBatchEngine(const SimConfig& config) : config_(config) {}

void StaticBatchEngine::Arrive(const SimRequest& request, size_t index, Instant /*now*/) {
  waiting_.push_back({request, index});
}

void StaticBatchEngine::StartBatch() {
  num_steps_ = 0;
  longest_prompt_ = 0;
  longest_output_ = 0;
  const auto most = static_cast<size_t>(MaxBatchRequests(config_));
  while (!waiting_.empty() && batch_.size() < most) {
    batch_.push_back(waiting_.front());
    waiting_.pop_front();
    longest_prompt_ = std::max(longest_prompt_, batch_.back().request.prompt_tokens);
    longest_output_ = std::max(longest_output_, batch_.back().request.output_tokens);
  }
}

MemoryUse StaticBatchEngine::Memory() const {
  const int32_t group_size = config_.group_size();
  MemoryUse memory{.external = static_cast<double>(num_slots())};
  for (const Entry& entry : batch_) {
    // A sequence that has ended keeps its slots until the batch ends.
    const int32_t made = std::min(num_steps_, entry.request.output_tokens);
    const int32_t stored = entry.request.prompt_tokens + made;
    const int32_t total = entry.request.prompt_tokens + entry.request.output_tokens;
    memory.stored += group_size * stored;
    memory.reserved += group_size * (total - stored);
    memory.internal += group_size * (config_.max_model_len - total);
    memory.external -= group_size * config_.max_model_len;
  }
  return memory;
}

bool StaticBatchEngine::BeginStep(Instant now, EngineStep* step) {
  if (batch_.empty()) {
    StartBatch();
  }
  *step = {.begin = now};
  const auto num_sequences = static_cast<int32_t>(batch_.size()) * config_.group_size();
  step->work.num_sequences = num_sequences;
  // Padding is computed and read like tokens.
  const int32_t computed = num_steps_ == 0 ? longest_prompt_ : 1;
  const int32_t context = longest_prompt_ + num_steps_;
  step->work.num_tokens = int64_t{num_sequences} * computed;
  step->work.num_context_tokens = int64_t{num_sequences} * context;
  step->work.num_attended_tokens = num_sequences * NumAttendedTokens(computed, context);
  step->memory = Memory();
  return !batch_.empty();
}

void StaticBatchEngine::EndStep(Instant /*now*/, std::vector<size_t>* finished) {
  if (++num_steps_ < longest_output_) {
    return;
  }
  for (const Entry& entry : batch_) {
    finished->push_back(entry.index);
  }
  batch_.clear();
}

int64_t StaticBatchEngine::num_free_slots() const {
  const auto num_sequences = static_cast<int64_t>(batch_.size()) * config_.group_size();
  return num_slots() - num_sequences * config_.max_model_len;
}

}  // namespace quire
