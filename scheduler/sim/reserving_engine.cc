#include "scheduler/sim/reserving_engine.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "common/base/check.h"

namespace quire {

int32_t ReservedSlots(MemoryPolicy policy, const SimRequest& request, int32_t max_model_len) {
  switch (policy) {
    case MemoryPolicy::kOrcaMax:
      return max_model_len;
    case MemoryPolicy::kOrcaPow2: {
      const auto output = std::bit_ceil(static_cast<uint32_t>(request.output_tokens));
      return std::min(request.prompt_tokens + static_cast<int32_t>(output), max_model_len);
    }
    case MemoryPolicy::kOrcaOracle:
      return request.prompt_tokens + request.output_tokens;
    case MemoryPolicy::kPaged:
      break;
  }
  QUIRE_CHECK(false && "not a policy that reserves");
  return 0;
}

ReservingEngine::ReservingEngine(const SimConfig& config)
    : config_(config), allocator_(config.platform.num_kv_slots()) {}

void ReservingEngine::Arrive(const SimRequest& request, size_t index, Instant /*now*/) {
  waiting_.push_back({request, index});
}

int32_t ReservingEngine::NumTokensToCompute(const Running& running) {
  return running.num_output_tokens == 0 ? running.request.prompt_tokens : 1;
}

void ReservingEngine::AdmitWaiting() {
  auto budget = config_.max_tokens_per_step - static_cast<int32_t>(running_.size());
  while (!waiting_.empty() && running_.size() < static_cast<size_t>(config_.max_sequences)) {
    const Waiting& first = waiting_.front();
    if (first.request.prompt_tokens > budget) {
      return;
    }
    const int32_t reserved = ReservedSlots(config_.policy, first.request, config_.max_model_len);
    const std::optional<BuddyAllocator::Chunk> chunk = allocator_.Allocate(reserved);
    if (!chunk.has_value()) {
      return;  // first come, first served: nobody overtakes
    }
    budget -= first.request.prompt_tokens;
    running_.push_back({.request = first.request,
                        .index = first.index,
                        .chunk = *chunk,
                        .num_reserved = reserved});
    waiting_.pop_front();
  }
}

bool ReservingEngine::BeginStep(Instant now, EngineStep* step) {
  AdmitWaiting();
  *step = {.begin = now};
  step->work.num_sequences = static_cast<int32_t>(running_.size());
  step->memory.external = allocator_.num_slots();
  for (const Running& running : running_) {
    // K and V of the last output token are never stored.
    const int32_t stored = running.request.prompt_tokens + running.num_output_tokens;
    const int32_t total = running.request.prompt_tokens + running.request.output_tokens;
    step->work.num_tokens += NumTokensToCompute(running);
    step->work.num_context_tokens += stored;
    step->memory.stored += stored;
    step->memory.reserved += total - stored;
    step->memory.internal += running.num_reserved - total;
    step->memory.external -= running.num_reserved;
  }
  return !running_.empty();
}

void ReservingEngine::EndStep(Instant /*now*/, std::vector<size_t>* finished) {
  for (Running& running : running_) {
    if (++running.num_output_tokens == running.request.output_tokens) {
      finished->push_back(running.index);
      allocator_.Free(running.chunk);
    }
  }
  std::erase_if(running_, [](const Running& running) {
    return running.num_output_tokens == running.request.output_tokens;
  });
}

}  // namespace quire
