#include "scheduler/rpc/state_message.h"

#include <string>

#include "common/flags/command_line.h"
#include "common/wire/kv_backend_codec.h"

namespace quire {
namespace {

void FillBlocks(const ServingState::Snapshot& state, v1::KvBlocks* blocks) {
  const CoreStats& stats = state.stats;
  blocks->set_num_blocks(stats.num_blocks);
  blocks->set_num_free(stats.num_free_blocks - stats.num_free_cached_blocks);
  blocks->set_num_cached(stats.num_free_cached_blocks);
  blocks->set_num_active(stats.num_held_blocks);
  blocks->set_num_leaving(stats.num_used_blocks - stats.num_held_blocks);
  blocks->set_num_pending(stats.num_pending_blocks);
  blocks->set_num_shared(stats.num_shared_blocks);
  blocks->set_block_size_tokens(stats.block_size_tokens);
  blocks->set_block_bytes(state.block_bytes);
  blocks->set_num_stored_tokens(stats.num_stored_tokens);
  blocks->set_num_referenced_tokens(stats.num_table_tokens);
  blocks->set_fragmentation(stats.fragmentation());
}

v1::Rank::Phase PhaseOf(RankPhase phase) {
  switch (phase) {
    case RankPhase::kAway:
      return v1::Rank::AWAY;
    case RankPhase::kLoading:
      return v1::Rank::LOADING;
    case RankPhase::kWaiting:
      return v1::Rank::WAITING;
    case RankPhase::kReady:
      return v1::Rank::READY;
  }
  return v1::Rank::PHASE_UNSPECIFIED;
}

void FillKvMemory(const KvMemory& memory, const CoreStats& stats, v1::KvMemory* message) {
  const bool has_blocks = stats.num_blocks > 0;
  // The 1 stands for block 0, the null block, which is never allocated but has padding too.
  const int64_t num_blocks = has_blocks ? int64_t{stats.num_blocks} + 1 + stats.num_host_blocks : 0;
  message->set_backend(ToProto(*memory.backend));
  message->set_page_bytes(memory.page_bytes);
  message->set_padding_bytes(memory.padding_bytes * num_blocks);
  message->set_num_places(memory.num_places);
  if (memory.max_places.has_value()) {
    message->set_max_places(*memory.max_places);
  }
}

void FillSteps(const StepTotals& steps, v1::StepTimes* times) {
  times->set_num_steps(steps.num_steps);
  times->set_plan_us(steps.plan_ns / kNanosPerMicro);
  times->set_send_us(steps.send_ns / kNanosPerMicro);
  times->set_wait_us((steps.round_trip_ns - steps.send_ns) / kNanosPerMicro);
  times->set_apply_us(steps.apply_ns / kNanosPerMicro);
  times->set_publish_us(steps.publish_ns / kNanosPerMicro);
  times->set_worker_build_us(steps.worker.build_us);
  times->set_worker_forward_us(steps.worker.forward_us);
  times->set_worker_sample_us(steps.worker.sample_us);
  times->set_worker_collective_us(steps.worker.collective_us);
}

void FillMap(const LoopState& state, v1::BlockMap* message) {
  const BlockMap& map = state.block_map;
  message->set_blocks_per_cell(map.blocks_per_cell);
  for (const BlockMapCell& cell : map.cells) {
    message->add_num_cached(static_cast<uint32_t>(cell.num_cached));
    message->add_num_active(static_cast<uint32_t>(cell.num_active));
    message->add_num_leaving(static_cast<uint32_t>(cell.num_leaving));
    message->add_num_shared(static_cast<uint32_t>(cell.num_shared));
    message->add_holder(cell.holder.value());
  }
  for (size_t i = 0; i < map.holders.size(); ++i) {
    const BlockHolder& holder = map.holders[i];
    v1::BlockHolder* out = message->add_holders();
    out->set_number(holder.id.value());
    out->set_request_id(state.request_ids[i]);
    out->set_is_prefix(holder.is_prefix);
    out->set_num_blocks(holder.num_blocks);
    out->set_num_sequences(holder.num_sequences);
    out->set_num_prompt_tokens(holder.num_prompt_tokens);
    out->set_num_output_tokens(holder.num_output_tokens);
  }
}

}  // namespace

v1::GetLoadResponse LoadMessage(const ServingState::Snapshot& serving) {
  const CoreStats& stats = serving.stats;
  v1::GetLoadResponse load;
  load.set_ready(serving.is_ready());
  load.set_standby(serving.group == ServingState::Group::kStandby);
  load.set_num_running_requests(stats.num_running_requests);
  load.set_num_waiting_requests(stats.num_waiting_requests);
  load.set_num_swapped_requests(stats.num_swapped_requests);
  load.set_num_running_sequences(stats.num_running_sequences);
  load.set_num_queued_tokens(stats.num_queued_tokens);
  load.set_num_recompute_preemptions(stats.num_preemptions - stats.num_swap_preemptions);
  load.set_num_swap_preemptions(stats.num_swap_preemptions);
  load.set_swapped_out_bytes(serving.swap_bytes.out);
  load.set_swapped_in_bytes(serving.swap_bytes.in);
  load.set_num_failed_swap_ins(stats.num_failed_swap_ins);
  load.set_num_prefix_queried_tokens(stats.num_prefix_queried_tokens);
  load.set_num_prefix_hit_tokens(stats.num_prefix_hit_tokens);
  FillBlocks(serving, load.mutable_kv_blocks());
  for (const RankStatus& rank : serving.ranks) {
    v1::Rank* out = load.add_ranks();
    out->set_address(rank.address);
    out->set_phase(PhaseOf(rank.phase));
    if (rank.kv_memory.backend.has_value()) {
      FillKvMemory(rank.kv_memory, stats, out->mutable_kv_memory());
    }
  }
  load.mutable_host_blocks()->set_num_blocks(stats.num_host_blocks);
  load.mutable_host_blocks()->set_num_free(stats.num_host_blocks - stats.num_used_host_blocks);
  return load;
}

v1::GetStateResponse StateMessage(const ServedModel& model, const ServingState::Snapshot& serving) {
  v1::GetStateResponse message;
  *message.mutable_load() = LoadMessage(serving);
  message.set_time_us(serving.last_turn / kNanosPerMicro);
  message.set_version(std::string(Version()));
  message.set_model(model.names.front());
  message.set_num_prompt_tokens(serving.stats.num_prompt_tokens_computed);
  message.set_num_generated_tokens(serving.stats.num_tokens_committed);
  message.set_num_recomputed_tokens(serving.stats.num_recomputed_tokens);
  message.set_num_finished_requests(serving.stats.num_requests_finished);
  return message;
}

v1::GetStateResponse StateMessage(const ServedModel& model,
                                  ServingState::Snapshot serving,
                                  const LoopState& state) {
  serving.stats = state.stats;
  serving.swap_bytes = state.swap_bytes;
  serving.last_turn = state.taken_at;
  v1::GetStateResponse message = StateMessage(model, serving);
  FillSteps(state.steps, message.mutable_steps());
  FillMap(state, message.mutable_block_map());
  return message;
}

}  // namespace quire
