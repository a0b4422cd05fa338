#include "scheduler/step_log/step_log_record.h"

#include "scheduler/step_log/byte_stream.h"
#include "scheduler/step_log/field_codec.h"

namespace quire {

PlanMade Summarize(const StepPlan& plan) {
  PlanMade made{.digest = plan.digest,
                .group_epoch = plan.header.group_epoch,
                .step_id = plan.header.step_id,
                .num_swap_outs = static_cast<uint32_t>(plan.swap_outs.size()),
                .num_swap_ins = static_cast<uint32_t>(plan.swap_ins.size()),
                .num_copies = static_cast<uint32_t>(plan.copies.size()),
                .num_introductions = static_cast<uint32_t>(plan.introductions.size()),
                .num_slices = static_cast<uint32_t>(plan.slices.size()),
                .num_releases = static_cast<uint32_t>(plan.releases.size())};
  for (const SequenceSlice& slice : plan.slices) {
    made.num_tokens += static_cast<uint64_t>(slice.num_tokens);
  }
  return made;
}

EventsTaken Summarize(const std::vector<OutputEvent>& events) {
  EventsTaken taken;
  HashWriter digest;
  for (const OutputEvent& event : events) {
    digest.Varint(event.index());
    std::visit([&digest](const auto& e) { Put(e, digest); }, event);
    taken.num_tokens += std::holds_alternative<TokenCommitted>(event) ? 1 : 0;
    taken.num_finished += std::holds_alternative<SequenceFinished>(event) ? 1 : 0;
  }
  taken.digest = digest.value();
  return taken;
}

void PutTail(const EpochBegun& begun, ByteWriter& out) {
  const bool has_pages = begun.limits.blocks_per_page > 1;
  if (begun.limits.wants_next_blocks || has_pages) {
    out.Varint(begun.limits.wants_next_blocks ? 1 : 0);
  }
  if (has_pages) {
    out.Varint(static_cast<uint64_t>(begun.limits.blocks_per_page));
  }
}

void GetTail(ByteReader& in, EpochBegun& begun) {
  if (in.at_end()) {
    return;
  }
  const uint64_t wants_next_blocks = in.Varint();
  const bool has_pages = !in.at_end();
  const uint64_t blocks_per_page = has_pages ? in.Varint() : 1;
  const uint64_t min_blocks_per_page = has_pages ? 2 : 1;
  if (wants_next_blocks > 1 || (wants_next_blocks == 0 && !has_pages) ||
      blocks_per_page < min_blocks_per_page || blocks_per_page > kMaxBlocksPerPage) {
    in.Fail();
    return;
  }
  begun.limits.wants_next_blocks = wants_next_blocks == 1;
  begun.limits.blocks_per_page = static_cast<int32_t>(blocks_per_page);
}

}  // namespace quire
