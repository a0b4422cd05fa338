"""The planted bugs: named mutations of the scheduler's sources.

Each text must occur exactly once in its file, or plant_bugs.py stops. So a change of a line that a bug
names must change the bug too, and the list stays up to date.
"""
import collections

PROGRAM = "core_soak"

Bug = collections.namedtuple("Bug", "name file text replacement")

POOL = "scheduler/kv_cache/block_pool.cc"
MANAGER = "scheduler/kv_cache/kv_cache_manager.cc"
PAGES = "scheduler/kv_cache/kv_cache_pages.cc"
EVENTS = "scheduler/kv_cache/cache_event_log.cc"
SWAP_SPACE = "scheduler/kv_cache/swap_space.cc"
HASH = "scheduler/kv_cache/block_hash.cc"
SHARING = "scheduler/core/prefix_sharing.cc"
STATE = "scheduler/core/core_state.cc"
PLANNER = "scheduler/core/step_planner.cc"
OUTPUT = "scheduler/core/output_processor.cc"
CORE = "scheduler/core/scheduler_core.cc"
SEQUENCE = "scheduler/core/sequence.cc"
GROUP = "scheduler/core/sequence_group.cc"
REQUEST = "scheduler/core/request.cc"
QUEUE = "scheduler/core/waiting_queue.cc"
POLICY = "scheduler/core/scheduling_policy.cc"
HANDLES = "scheduler/core/handle_pool.cc"
BEAMS = "scheduler/core/beam_group.cc"
SUSPECTS = "scheduler/core/crash_suspects.cc"
OVERTAKING = "scheduler/core/overtaking.cc"
NEXT_BLOCKS = "scheduler/core/next_blocks.cc"
INTRODUCTIONS = "scheduler/core/introduction_budget.cc"
PLANNER_OVERTAKING = "scheduler/core/step_planner_overtaking.cc"

BUGS = [
    # Reference counts, free list, fence.
    Bug("missing_decrement", POOL, "if (--record.ref_count > 0) {", "if (record.ref_count > 1) {"),
    Bug("freed_too_early", POOL, "if (--record.ref_count > 0) {", "if (--record.ref_count > 1) {"),
    Bug("fence_not_raised", POOL, "  is_fenced_ = true;", "  is_fenced_ = false;"),
    Bug("fence_passed_by", POOL, "  if (is_fenced_) {\n    record.place",
        "  if (false) {\n    record.place"),
    Bug("fence_lowered_for_one_block", POOL, "while (pending_.size > 0) {",
        "if (pending_.size > 0) {"),
    Bug("touched_block_stays_on_the_free_list", POOL,
        "    LeaveFree(block_id);\n  } else if", "  } else if"),
    # Pages.
    Bug("opened_page_stays_whole", POOL, "  --num_free_in_page_[PageOf(block_id)];\n", ""),
    Bug("opened_page_keeps_its_other_blocks", POOL, "        PushBack(loose_, id);\n", ""),
    Bug("moved_blocks_are_free_at_once", PAGES,
        "  replaced_.insert(replaced_.end(), first, table.block_ids_.end());\n",
        "  replaced_.insert(replaced_.end(), first, table.block_ids_.end());\n"
        "  for (auto it = first; it != table.block_ids_.end(); ++it) { pool_.Free(*it); }\n"),
    Bug("copies_of_blocks_being_computed", PAGES,
        "           std::find(published_.begin(), published_.end(), block_id) != published_.end();",
        "           false;"),
    Bug("moves_are_not_copied", PLANNER,
        "    state_.step.copies.push_back({.src = copy.src, .dst = copy.dst});\n", ""),
    # Tables.
    Bug("a_block_too_many_at_the_edge", MANAGER,
        "static_cast<int32_t>(DivCeil(num_tokens, block_size_tokens_))",
        "static_cast<int32_t>(num_tokens / block_size_tokens_ + 1)"),
    Bug("copy_on_write_skipped_between_two", MANAGER,
        "!is_full && pool_.ref_count(table.block_ids_.back()) > 1;",
        "!is_full && pool_.ref_count(table.block_ids_.back()) > 2;"),
    Bug("copy_on_write_keeps_the_shared_block", MANAGER, "  pool_.Free(shared);\n", ""),
    Bug("copy_not_ordered", PLANNER,
        "    state_.step.copies.push_back({.src = copy->src, .dst = copy->dst});\n", ""),
    Bug("fork_shares_one_token_too_many", STATE,
        "const int32_t num_shared = sequence.num_prompt_tokens() - 1;",
        "const int32_t num_shared = sequence.num_prompt_tokens();"),
    Bug("fork_takes_no_reference", MANAGER, "    pool_.Touch(parent.block_ids_[i]);\n", ""),
    Bug("end_keeps_the_blocks", STATE,
        "  epoch->kv_cache.Free(sequence.table);\n  GiveBackHandle(sequence);",
        "  sequence.table.Abandon();\n  GiveBackHandle(sequence);"),
    # Prefix cache.
    Bug("hash_without_salt", HASH, "return SipHash128(key, std::as_bytes(std::span(cache_salt)));",
        "return SipHash128(key, {});"),
    Bug("hash_without_parent", HASH,
        "SipHash128(SipHash128(key, std::as_bytes(std::span(&parent, 1))), std::as_bytes(tokens))",
        "SipHash128(key, std::as_bytes(tokens))"),
    Bug("bypassing_request_leaves_blocks", SHARING,
        "state.config.prefix_caching && !group.request().bypasses_prefix_cache;",
        "state.config.prefix_caching;"),
    Bug("last_token_not_computed_again", SHARING, "(sequence.num_tokens() - 1) / block_size",
        "sequence.num_tokens() / block_size"),
    Bug("published_under_the_next_name", MANAGER, "cache_.Insert(block_id, hashes[i]);",
        "cache_.Insert(block_id, hashes[std::min(i + 1, hashes.size() - 1)]);"),
    Bug("found_after_it_was_handed_out", MANAGER,
        "    Unlist(block_id);\n  }\n  return new_blocks;", "  }\n  return new_blocks;"),
    Bug("found_after_it_was_swapped_into", MANAGER,
        "    Unlist(block_id);\n  }\n  const auto& block_of", "  }\n  const auto& block_of"),
    Bug("bad_rows_stay_in_the_cache", OUTPUT,
        "  state.epoch->kv_cache.Unpublish(sequence.table, /*first_block=*/0, "
        "sequence.block_hashes);\n", ""),
    Bug("rows_nobody_looks_at_stay_in_the_cache", STATE,
        "      epoch->kv_cache.Unpublish(sequence.table, num_full, sequence.block_hashes);\n",
        "      static_cast<void>(num_full);\n"),
    Bug("free_copy_found_before_the_held_block", MANAGER,
        "if (listed.has_value() && pool_.ref_count(*listed) == 0) {", "if (false) {"),
    Bug("names_outlive_the_block_size", CORE,
        "  if (were_limits_known && state_->last_limits->block_size_tokens !=", "  if (false && 0 !="),
    # Cache events.
    Bug("removed_block_not_told", MANAGER,
        "    cache_events_.OnUnlisted(block_id, *cache_.HashOf(block_id));\n", ""),
    Bug("listed_block_not_told", MANAGER, "if (is_new && contents",
        "if (is_new && i > 0 && contents"),
    Bug("private_block_told", SHARING,
        "if (!kv_cache.keeps_cache_events() || !UsesPrefixCache(state, group)) {",
        "if (!kv_cache.keeps_cache_events()) {"),
    Bug("block_told_that_another_one_holds", MANAGER, "if (is_new && contents", "if (contents"),
    Bug("told_without_parent", EVENTS, "index > 0 ? std::make_optional(hashes[index - 1])",
        "false ? std::make_optional(hashes[index - 1])"),
    Bug("told_behind_another_parent", EVENTS,
        "events_.back().block_hashes.back() == hashes[index - 1];", "true;"),
    Bug("told_again_after_its_removal", EVENTS,
        "  is_told_[static_cast<size_t>(block_id)] = false;\n", ""),
    Bug("lost_cache_not_told", STATE, "  has_lost_cache = keeps_cache_events;\n", ""),
    # Swapping.
    Bug("copy_under_way_not_referenced", SWAP_SPACE,
        "    device_pool.Touch(block_id);  // the copy reads it\n", ""),
    Bug("swap_done_a_step_too_early", SWAP_SPACE, "leaving_.front().step_id <= step_id;",
        "leaving_.front().step_id <= step_id + 1;"),
    Bug("block_swapped_out_twice_in_a_step", SWAP_SPACE,
        "std::unordered_map<BlockId, HostBlockId>& host_of = leaving_now_.Of(step_id);",
        "std::unordered_map<BlockId, HostBlockId> host_of;"),
    Bug("host_block_leaks", MANAGER, "    swap_space_.Free(*tables.host_table);",
        "    tables.host_table->Abandon();"),
    Bug("host_block_reused_while_it_is_read", SWAP_SPACE,
        "arriving_.front().step_id <= step_id;", "arriving_.front().step_id <= step_id + 1;"),
    Bug("host_blocks_of_the_ended_leak", STATE,
        "    epoch->kv_cache.Free(sequence.host_table);\n  }\n  sequence.BecomeFinished();",
        "    sequence.host_table.Abandon();\n  }\n  sequence.BecomeFinished();"),
    Bug("swap_in_not_ordered", STATE, "    step.swap_ins.push_back(\n"
        "        {.block = each.block, .host_block = each.host_block, "
        ".generation = each.generation});\n", ""),
    Bug("resume_forgets_the_tail_copies", MANAGER,
        "need.num_tail_copies += count - (num_holders.at(host_block) == count ? 1 : 0);",
        "need.num_tail_copies += 0 * count;"),
    Bug("resume_counts_a_sequence_that_has_ended", STATE,
        "  End(sequence);\n  group.num_blocks_to_resume.reset();\n", "  End(sequence);\n"),
    Bug("host_table_names_another_step", SWAP_SPACE,
        "    tables.host_table->generation_ = step_id;\n",
        "    tables.host_table->generation_ = step_id - 1;\n"),
    Bug("without_its_block_and_not_recomputed", OUTPUT,
        "  for (SequenceGroup* group : to_recompute) {\n    state.ReturnToWaiting(*group);\n  }\n"
        "  state.counters",
        "  state.counters"),
    Bug("only_the_first_without_its_block_recomputed", OUTPUT,
        "return std::ranges::any_of(group->sequences(), lacks_block);",
        "return lacks_block(group->sequences().front());"),
    Bug("copy_of_a_lost_block_is_trusted", OUTPUT, "      lost.insert(copy.dst);\n", ""),
    Bug("found_before_it_is_known_to_be_back", PLANNER, "  if (&group != arriving_) {",
        "  if (true) {"),
    # Planning.
    Bug("forks_count_one_copy_too_many", PLANNER,
        "std::min(count, epoch_.kv_cache.pool().ref_count(*it) - 1);", "count;"),
    Bug("watermark_lost", PLANNER, "static_cast<int32_t>(std::ceil(watermark))", "0"),
    Bug("slice_without_free_blocks", PLANNER,
        "  if (num_blocks > kv_cache.num_free_blocks()) {", "  if (false) {"),
    # Bytes of introductions.
    Bug("forks_that_wait_hold_nobody_back", PLANNER,
        "} else if (!is_fork_refused || !epoch_.kv_cache.IsTailShared(sequence->table)) {", "} else {"),
    Bug("introductions_are_not_counted", INTRODUCTIONS, "  num_bytes_ += num_bytes;\n",
        "  num_bytes_ += num_bytes > 0 ? 1 : 0;\n"),
    Bug("nothing_is_introduced_on_half_a_budget", INTRODUCTIONS, "return num_bytes_ == 0 || is_owed ||",
        "return is_owed ||"),
    # Prompts beside streams, and short ones that pass long ones.
    Bug("blocks_of_a_cut_prompt_given_away", PLANNER,
        "epoch_.kv_cache.num_free_blocks() - num_kept_;", "epoch_.kv_cache.num_free_blocks();"),
    Bug("as_long_ones_pass", OVERTAKING, "NumTokensLeft(cut) / kTimesShorter", "NumTokensLeft(cut)"),
    Bug("those_that_pass_take_all", PLANNER_OVERTAKING, "num_set_aside_ / kPassingDivisor;", "num_set_aside_;"),
    Bug("who_is_passed_loses_its_room", OVERTAKING,
        "    num_blocks -= NumBlocksToCompute(*group, /*num_shared_blocks=*/0, limits);\n", ""),
    Bug("who_is_passed_loses_its_handles", OVERTAKING,
        "    num_handles -= group->num_live_sequences();\n", ""),
    Bug("those_that_decode_leave_no_prompt", PLANNER_OVERTAKING,
        "num_step_tokens_ / kPassingDivisor - num_in_use;",
        "epoch_.limits.max_sequences;"),
    Bug("blocks_of_the_prompt_that_is_passed_taken", PLANNER_OVERTAKING,
        "  num_reserved_ += num_blocks;\n", ""),
    Bug("older_than_newest_preempted", "scheduler/core/preemption.cc",
        "SequenceGroup& last = *state.running.back();",
        "SequenceGroup& last = **std::max(state.running.data(), &state.running.back() - 1);"),
    Bug("resumed_group_loses_its_place", STATE, "groups.insert(PlaceOf(groups, group), &group);",
        "groups.push_back(&group);"),
    Bug("queue_counter_drifts", QUEUE,
        "  load.num_tokens += times * group.num_tokens_at_arrival();",
        "  load.num_tokens += std::max(times, 0) * group.num_tokens_at_arrival();"),
    Bug("queue_one_longer_than_its_bound", QUEUE, "all.num_requests >= bounds.max_requests",
        "all.num_requests > bounds.max_requests"),
    Bug("handle_never_released", HANDLES, "  to_release_.push_back(handle);\n", ""),
    Bug("handle_taken_before_it_is_free", HANDLES,
        "  is_in_use_[handle] = false;\n  to_release_.push_back(handle);",
        "  is_in_use_[handle] = false;\n  free_.push_back(handle);"),
    Bug("forced_token_not_sent", SEQUENCE, "    forced_token_id_ = token_id;\n", ""),
    Bug("dropped_beam_keeps_its_blocks", BEAMS,
        "      state.epoch->kv_cache.Free(sequences[index].table);",
        "      sequences[index].table.Abandon();"),
    Bug("prompts_are_served_free", QUEUE,
        "    policy_.OnServed(group.request().tenant, group.request().num_prompt_tokens(), 0);\n", ""),
    Bug("output_is_served_free", OUTPUT,
        "  state.policy->OnServed(group.request().tenant, 0, /*num_output_tokens=*/1);\n", ""),
    Bug("tenant_that_got_most_is_next", POLICY,
        "a->counter < b->counter : a->since", "a->counter > b->counter : a->since"),
    Bug("tenant_saves_what_it_did_not_use", POLICY,
        "  Charge(account, std::max<int64_t>(0, floor_ - account.counter));\n", ""),
    Bug("tenant_fills_the_queue", QUEUE, "  return is_full ? Refusal::kTenantFull : Refusal::kNone;",
        "  static_cast<void>(is_full);\n  return Refusal::kNone;"),
    # Answers.
    Bug("stale_epoch_accepted", OUTPUT, "if (result.header != step.header) {",
        "if (result.header.step_id != step.header.step_id) {"),
    Bug("answer_to_another_plan_accepted", OUTPUT,
        "if (result.plan_digest != step.plan_digest) {", "if (false) {"),
    Bug("repeated_answer_accepted", OUTPUT, "  if (!step.is_active) {\n    return Refuse(",
        "  if (false) {\n    return Refuse("),
    Bug("token_outside_of_the_vocabulary_accepted", OUTPUT,
        "return token_id >= 0 && token_id < limits.vocab_size;", "return token_id >= 0;"),
    Bug("token_committed_twice", OUTPUT, "  sequence.Commit(sampled.token_id);",
        "  sequence.Commit(sampled.token_id);\n  state.events.push_back(state.events.back());"),
    Bug("bad_row_committed", OUTPUT, "    if (has_token) {\n      TakeToken",
        "    if (true) {\n      TakeToken"),
    # Sliding window.
    Bug("window_passes_a_block_too_early", MANAGER,
        "const int32_t num_passed = NumPassedBlocks(num_computed_tokens);",
        "const int32_t num_passed = NumPassedBlocks(num_computed_tokens + 1);"),
    Bug("passed_block_not_given_back", MANAGER,
        "    pool_.Free(std::exchange(table.block_ids_[static_cast<size_t>("
        "table.num_passed_blocks_)],\n                             kNullBlockId));",
        "    table.block_ids_[static_cast<size_t>(table.num_passed_blocks_)] = kNullBlockId;"),
    Bug("found_without_a_block_in_the_window", MANAGER,
        "if (num_passed + num_found >= num_blocks) {",
        "if (num_passed + num_found + 1 >= num_blocks) {"),
    # Ends and deadlines.
    Bug("deadline_not_removed", STATE, "  deadlines.Remove(group.request());\n", ""),
    Bug("idle_server_refuses_for_a_deadline", "scheduler/core/deadline_admission.cc",
        "if (FindsRoom(state, request) && !HasTrial(", "if (false && !HasTrial("),
    Bug("dropped_although_it_computed", "scheduler/core/deadline_admission.cc",
        "if (first.has_started() || !Has", "if (!Has"),
    Bug("expires_too_late", "scheduler/core/deadlines.cc", "by_time_.begin()->first > now",
        "by_time_.begin()->first >= now"),
    Bug("expired_for_the_wrong_reason", CORE, "group.is_running() || group.has_started()",
        "group.is_running()"),
    Bug("stops_before_min_tokens", OUTPUT,
        "sequence.num_output_tokens() > request.sampling.min_tokens",
        "sequence.num_output_tokens() >= request.sampling.min_tokens"),
    Bug("one_token_too_many", OUTPUT, "sequence.num_output_tokens() >= request.max_tokens",
        "sequence.num_output_tokens() > request.max_tokens"),
    Bug("context_one_token_too_long", REQUEST,
        "max_model_len - request->num_prompt_tokens());",
        "max_model_len + 1 - request->num_prompt_tokens());"),
    Bug("cut_to_every_context_anew", CORE, "    if (!were_limits_known) {", "    if (true) {"),
    Bug("longer_than_the_context_lives_on", "scheduler/core/admission.cc",
        "group.request().num_tokens_at_most() <= limits.max_model_len &&", "true &&"),
    # Loss of workers.
    Bug("swapped_groups_lost_with_the_workers", STATE,
        "        sequence.host_table.Abandon();\n        sequence.BecomeWaiting();\n"
        "      }\n    }\n    waiting.Return(*group);",
        "        sequence.host_table.Abandon();\n        sequence.BecomeWaiting();\n      }\n    }"),
    # Crashes.
    Bug("suspect_computes_beside_others", PLANNER, "  if (suspect == nullptr) {\n    DropUnreachable",
        "  if (true) {\n    DropUnreachable"),
    Bug("loss_that_is_no_crash_counts", STATE, "  if (!was_crash) {", "  if (false) {"),
    Bug("crashes_are_not_counted", SUSPECTS,
        ".num_crashes = MostCrashesIn(range, before) + 1};", ".num_crashes = 1};"),
    Bug("ends_after_it_crashed_alone_twice", SUSPECTS, "num_crashes() >= kMaxCrashes) {",
        "num_crashes() >= kMaxCrashes - 1) {"),
    Bug("suspected_only_after_three_crashes", SUSPECTS, "kCrashesToSuspect = 2;",
        "kCrashesToSuspect = 3;"),
    Bug("cleared_by_some_of_its_range", SUSPECTS,
        "  if (range->second.begin >= range->second.end) {", "  if (true) {"),
    Bug("never_cleared", OUTPUT,
        "  state.suspects.OnComputed(\n      slice.group->id(), sequence.sequence_index(), "
        "sequence.num_computed_tokens());\n", ""),
    Bug("ended_sequence_is_waited_for", STATE,
        "    suspects.Forget(group.id(), sequence.sequence_index());\n", ""),
    Bug("others_do_not_make_room_for_the_suspect", PLANNER,
        "while (!state_.running.empty() && !WillHaveRoom(suspect)) {", "while (false) {"),
    Bug("unanswered_step_survives_its_workers", STATE,
        "  step.Clear();\n  epoch.reset();", "  epoch.reset();"),
    # Requests that go on in another scheduler.
    Bug("resumed_output_forgotten", GROUP, "std::move(resumed.token_ids));",
        "std::vector<TokenId>());"),
    Bug("ended_sequence_generated_again", GROUP, "if (resumed.has_ended) {", "if (false) {"),
    Bug("resumed_taken_without_room", CORE,
        "request.num_tokens_at_most() > limits.max_model_len ||", "false ||"),
    Bug("resumed_cut_to_the_next_context", REQUEST, "if (!request->is_resumed) {", "if (true) {"),
    Bug("ended_sequences_need_room", CORE, "FitsPool(request, request.num_live_sequences(), limits)",
        "FitsPool(request, request.group_size(), limits)"),
    Bug("resumed_take_the_places_of_new_ones", QUEUE,
        "Load& load = group.request().is_resumed ? resumed : fresh;", "Load& load = fresh;"),
    Bug("resumed_one_more_than_accepted", QUEUE,
        "{.max_requests = config.max_resumed_requests,",
        "{.max_requests = config.max_resumed_requests + 1,"),
    Bug("tenant_fills_the_places_of_resumed_ones", QUEUE,
        ".share_factor = kShareFactorOfResumed", ".share_factor = 1000"),
    # Blocks that are named ahead of need.
    Bug("one_block_named_for_two", NEXT_BLOCKS, "= step.next_blocks[k];", "= step.next_blocks[0];"),
    Bug("named_block_is_its_own_last_one", NEXT_BLOCKS, "= step.next_blocks[k];",
        "= step.slices[step.growing[k]].sequence->table.block_ids().back();"),
    Bug("spare_window_of_a_used_handle", NEXT_BLOCKS, "plan.spare.handle = *handle;",
        "plan.spare.handle = plan.slices.empty() ? *handle : plan.slices[0].handle;"),
    Bug("spare_window_of_one_block", NEXT_BLOCKS,
        "epoch.kv_cache.PeekFirstBlocks(MaxSpareBlocks(epoch.limits), plan.spare.block_ids);",
        "plan.spare.block_ids.assign(2, 1);"),
    Bug("next_blocks_named_to_who_does_not_want_them", PLANNER,
        "  if (epoch_.limits.wants_next_blocks) {", "  if (true) {"),
]
