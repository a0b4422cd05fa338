"""The planted bugs of schedulers that stand by for each other, for standby_soak; see bugs.py for the
rules."""
from bugs import Bug

PROGRAM = "standby_soak"

CLAIM = "worker/runtime/scheduler_claim.cc"
SUCCESSION = "scheduler/group/succession.cc"
GROUP = "scheduler/group/worker_group.cc"

BUGS = [
    # A worker's record of its scheduler.
    Bug("ask_is_not_noted", CLAIM,
        "  scheduler_incarnation_ = scheduler_incarnation;\n  group_epoch_ = group_epoch;\n", ""),
    Bug("older_ask_is_accepted", CLAIM,
        "  QUIRE_RETURN_IF_ERROR(Check(scheduler_incarnation, group_epoch));\n", ""),
    Bug("steps_of_an_older_scheduler_are_executed", CLAIM,
        "  QUIRE_RETURN_IF_ERROR(CheckIncarnation(scheduler_incarnation, "
        "scheduler_incarnation_));\n", ""),
    Bug("any_scheduler_counts_as_the_holder", CLAIM,
        "  if (scheduler_incarnation == scheduler_incarnation_) {", "  if (true) {"),
    # The times at which a scheduler asks for workers.
    Bug("standby_does_not_wait", SUCCESSION,
        "  if (WaitsFor().has_value()) {\n    outwaited_ = 0;",
        "  if (false) {\n    outwaited_ = 0;"),
    Bug("holder_has_no_first_turn", SUCCESSION, "  if (has_waited_ && !is_in_turn) {",
        "  if (false) {"),
    Bug("turn_is_lost_by_the_new_number", SUCCESSION,
        "const bool is_outwaited = other->incarnation <= outwaited_ &&",
        "const bool is_outwaited = false &&"),
    Bug("two_take_one_number", SUCCESSION,
        "std::max(incarnation, incarnation_) + 1 + own_part_;",
        "std::max(incarnation, incarnation_) + 1;"),
    Bug("cut_off_scheduler_never_lets_go", GROUP,
        "  if (succession_.has_asked() && IsCutOff(now)) {", "  if (false) {"),
    # A superseded scheduler.
    Bug("scheduler_without_its_workers_takes_them_back", SUCCESSION,
        "  has_asked_ = has_asked_ && !AreWorkersReplaced();\n", ""),
    Bug("reports_of_a_newer_scheduler_are_ignored", GROUP,
        "  if (succession_.IsOvertaken()) {", "  if (false) {"),
    Bug("superseded_one_keeps_its_requests", GROUP,
        "  const bool may_go_on = pinned_.has_value() && !succession_.DoesOtherLive();",
        "  const bool may_go_on = pinned_.has_value();"),
    Bug("standby_says_nothing", GROUP,
        "  actions_.push_back(ReportStandby{other_incarnation});\n", ""),
    Bug("standby_without_workers_goes_on", GROUP,
        "      std::ranges::any_of(ranks_, HasReported)) {", "      true) {"),
    Bug("cut_off_scheduler_admits_for_ever", GROUP,
        "  return timing_.cut_off_ns > 0 && pinned_", "  return false && pinned_"),
    Bug("standby_that_is_ready_says_so", GROUP,
        "  if (waits_for_ != 0) {\n    StandBy(0);\n  }\n  agreement_", "  agreement_"),
    Bug("superseded_one_takes_at_once_again", SUCCESSION,
        "  stands_by_ = true;\n", ""),
]
