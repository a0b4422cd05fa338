#include "scheduler/sim/swap_link.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

Instant Nanos(double seconds) {
  return std::llround(seconds * static_cast<double>(kNanosPerSecond));
}

}  // namespace

SwapLink::SwapLink(const Platform& platform, BlockLayout layout, const StepLimits& limits)
    : platform_(platform),
      layout_(layout),
      block_size_tokens_(limits.block_size_tokens),
      written_at_(static_cast<size_t>(limits.num_host_blocks), 0) {}

Instant SwapLink::Begin(const StepPlan& plan, Instant now) {
  const auto step_id = plan.header.step_id;
  Instant begin = now;
  if (!plan.swap_outs.empty()) {
    begin = Start(static_cast<int64_t>(plan.swap_outs.size()), step_id, begin, &out_free_at_);
    for (const BlockSwapOut& swap : plan.swap_outs) {
      written_at_[static_cast<size_t>(swap.host_block)] = out_free_at_;
    }
  }
  if (!plan.swap_ins.empty()) {
    in_free_at_ = std::max(in_free_at_, WrittenAt(plan.swap_ins));
    Start(static_cast<int64_t>(plan.swap_ins.size()), step_id, begin, &in_free_at_);
    begin = in_free_at_;
  }
  if (plan.slices.empty()) {
    begin = std::max({begin, out_free_at_, in_free_at_});
  }
  return begin;
}

Instant SwapLink::Start(int64_t num_blocks,
                        uint64_t step_id,
                        Instant now,
                        Instant* engine_free_at) {
  const CopyCost cost = CostOfCopy(platform_, layout_, block_size_tokens_, num_blocks);
  *engine_free_at = std::max(now, *engine_free_at) + Nanos(cost.total_s);
  under_way_.push_back({.step_id = step_id, .done_at = *engine_free_at});
  return now + Nanos(cost.submit_s);
}

Instant SwapLink::WrittenAt(const std::vector<BlockSwapIn>& swaps) const {
  Instant written_at = 0;
  for (const BlockSwapIn& swap : swaps) {
    written_at = std::max(written_at, written_at_[static_cast<size_t>(swap.host_block)]);
  }
  return written_at;
}

uint64_t SwapLink::SwapsDone(uint64_t last_step_id, Instant now) {
  while (!under_way_.empty() && under_way_.front().done_at <= now) {
    under_way_.pop_front();
  }
  return under_way_.empty() ? last_step_id : under_way_.front().step_id - 1;
}

}  // namespace quire
