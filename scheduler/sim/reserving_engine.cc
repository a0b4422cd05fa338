#include "scheduler/sim/reserving_engine.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

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
    case MemoryPolicy::kFasterTransformer:
      break;
  }
  QUIRE_CHECK(false && "not a policy that reserves");
  return 0;
}

bool FitsReserved(const SimConfig& config, const SimRequest& request) {
  const int32_t reserved = ReservedSlots(config.policy, request, config.max_model_len);
  // A chunk's length is a power of two, and a chunk begins at a multiple of its length. So an empty
  // pool of n slots has room for n / chunk chunks.
  const auto chunk = std::bit_ceil(static_cast<uint32_t>(reserved));
  return static_cast<uint32_t>(config.platform.num_kv_slots()) / chunk >=
         static_cast<uint32_t>(config.group_size());
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
  const int32_t group_size = config_.group_size();
  auto num_sequences = static_cast<int32_t>(running_.size()) * group_size;
  auto budget = config_.max_tokens_per_step - num_sequences;
  while (!waiting_.empty() && num_sequences + group_size <= config_.max_sequences) {
    const Waiting& first = waiting_.front();
    if (group_size * first.request.prompt_tokens > budget) {
      return;
    }
    const int32_t reserved = ReservedSlots(config_.policy, first.request, config_.max_model_len);
    std::vector<BuddyAllocator::Chunk> chunks = Reserve(reserved);
    if (chunks.empty()) {
      return;  // first come, first served: no request overtakes
    }
    budget -= group_size * first.request.prompt_tokens;
    num_sequences += group_size;
    running_.push_back({.request = first.request,
                        .index = first.index,
                        .chunks = std::move(chunks),
                        .num_reserved = reserved});
    waiting_.pop_front();
  }
}

std::vector<BuddyAllocator::Chunk> ReservingEngine::Reserve(int32_t num_slots) {
  std::vector<BuddyAllocator::Chunk> chunks;
  for (int32_t i = 0; i < config_.group_size(); ++i) {
    const std::optional<BuddyAllocator::Chunk> chunk = allocator_.Allocate(num_slots);
    if (!chunk.has_value()) {
      Free(chunks);
      return {};
    }
    chunks.push_back(*chunk);
  }
  return chunks;
}

void ReservingEngine::Free(const std::vector<BuddyAllocator::Chunk>& chunks) {
  for (const BuddyAllocator::Chunk& chunk : chunks) {
    allocator_.Free(chunk);
  }
}

bool ReservingEngine::BeginStep(Instant now, EngineStep* step) {
  AdmitWaiting();
  *step = {.begin = now};
  const int32_t group_size = config_.group_size();
  step->work.num_sequences = group_size * static_cast<int32_t>(running_.size());
  step->memory.external = allocator_.num_slots();
  for (const Running& running : running_) {
    // In the last step, `stored` is total - 1, because K and V of the last output token are never
    // stored.
    const int32_t stored = running.request.prompt_tokens + running.num_output_tokens;
    const int32_t total = running.request.prompt_tokens + running.request.output_tokens;
    step->work.num_tokens += int64_t{group_size} * NumTokensToCompute(running);
    step->work.num_context_tokens += int64_t{group_size} * stored;
    step->work.num_attended_tokens +=
        group_size * NumAttendedTokens(NumTokensToCompute(running), stored);
    step->memory.stored += group_size * stored;
    step->memory.reserved += group_size * (total - stored);
    step->memory.internal += group_size * (running.num_reserved - total);
    step->memory.external -= group_size * running.num_reserved;
  }
  return !running_.empty();
}

void ReservingEngine::EndStep(Instant /*now*/, std::vector<size_t>* finished) {
  for (Running& running : running_) {
    if (++running.num_output_tokens == running.request.output_tokens) {
      finished->push_back(running.index);
      Free(running.chunks);
    }
  }
  std::erase_if(running_, [](const Running& running) {
    return running.num_output_tokens == running.request.output_tokens;
  });
}

}  // namespace quire
