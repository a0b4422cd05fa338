"""The planted bugs of the worker group, for group_soak; see bugs.py for the rules."""
from bugs import Bug

PROGRAM = "group_soak"

GROUP = "scheduler/group/worker_group.cc"
ANSWERS = "scheduler/group/step_answers.cc"
DETECTOR = "scheduler/group/failure_detector.cc"
AGREEMENT = "scheduler/group/agreement.cc"
MERGE = "common/step/merge_results.cc"

BUGS = [
    # Links and answers of a rank.
    Bug("link_given_up_is_listened_to", GROUP,
        "  return rank.link_number == link.number ? &rank : nullptr;", "  return &rank;"),
    Bug("answer_to_another_step_counts", GROUP,
        "!pending_->IsAwaited(link.rank, result.header)) {", "pending_->HasAnswered(link.rank)) {"),
    Bug("answer_to_another_plan_counts", ANSWERS, "if (result.plan_digest != digest_) {",
        "if (false) {"),
    # Several ranks as one.
    Bug("tokens_of_ranks_not_compared", MERGE, "  QUIRE_RETURN_IF_ERROR(CheckAllSame(results));\n",
        "  static_cast<void>(CheckAllSame);\n"),
    Bug("failed_swap_ins_of_rank_0_alone", MERGE, "  if (any_failed) {",
        "  if (any_failed && !first.failed_swap_ins.empty()) {"),
    Bug("swaps_are_done_when_the_fastest_has_done_them", MERGE,
        "first.swaps_done_step_id = std::min(", "first.swaps_done_step_id = std::max("),
    Bug("pool_of_the_last_rank", AGREEMENT,
        "    limits.num_blocks = std::min(limits.num_blocks, hello.num_blocks_max);",
        "    limits.num_blocks = hello.num_blocks_max;"),
    Bug("other_numerics_are_let_in", AGREEMENT,
        "  return pinned.has_value() ? CheckNumerics(hello, rank, *pinned, "
        "settings.allow_changed_numerics)\n                            : absl::OkStatus();",
        "  static_cast<void>(CheckNumerics);\n  return absl::OkStatus();"),
    # The ranks that a group waits for, and its timeouts.
    Bug("ready_before_all_began", GROUP, "    if (rank.state != RankState::kBegun) {\n      return;",
        "    if (rank.state != RankState::kBegun) {\n      break;"),
    Bug("step_not_sent_over_the_next_connection", GROUP,
        "  if (OwesAnswer(rank)) {\n    actions_.push_back(SendPlan",
        "  if (false) {\n    actions_.push_back(SendPlan"),
    Bug("silent_rank_is_waited_for", GROUP, "if (rank.detector.IsSilent(timing_.silence_ns, now)) {",
        "if (false) {"),
    Bug("stuck_rank_is_waited_for", GROUP,
        "if (rank.detector.StandsStill(timing_.step_timeout_ns) &&", "if (false &&"),
    Bug("who_waits_for_an_answered_rank_is_waited_for", GROUP,
        "is_rank && !pending_->HasAnswered(*other) ?", "is_rank ?"),
    Bug("only_who_says_executing_stands_still", DETECTOR,
        "return report_.phase != WorkerPhase::kIdle &&",
        "return report_.phase == WorkerPhase::kExecuting &&"),
    # Other schedulers, and the meaning of a loss.
    Bug("holder_that_cannot_be_is_believed", GROUP,
        "if (!succession_.IsPossible(report.holder_incarnation)) {", "if (false) {"),
    Bug("replaced_process_is_no_crash", GROUP,
        "was_crash || (pinned_.has_value() && rank.ready_uuid != rank.hello.uuid)", "was_crash"),
    Bug("every_loss_is_a_crash", GROUP,
        "bool was_crash = std::exchange(has_failed_at_step_, false);", "bool was_crash = true;"),
]
