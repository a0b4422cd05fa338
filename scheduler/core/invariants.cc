#include "scheduler/core/invariants.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/model/sliding_window.h"
#include "scheduler/core/admission.h"

namespace quire {
namespace {

void CheckSequence(const Sequence& sequence) {
  // Counts add up, and the tables hold exactly the computed and scheduled tokens. (I5)
  QUIRE_CHECK(sequence.num_computed_tokens() >= 0 && sequence.num_scheduled_tokens() >= 0);
  QUIRE_CHECK(sequence.num_computed_tokens() + sequence.num_scheduled_tokens() <=
              sequence.num_tokens());
  QUIRE_CHECK_EQ(
      (sequence.is_swapped() ? sequence.host_table.num_tokens() : sequence.table.num_tokens()),
      sequence.num_computed_tokens() + sequence.num_scheduled_tokens());

  // A sequence has blocks only while it runs, and host blocks only while it is swapped.
  QUIRE_CHECK(sequence.is_running() || sequence.table.empty());
  QUIRE_CHECK(sequence.is_swapped() || sequence.host_table.empty());
}

// Checks that the sequence gave back exactly the blocks before its next token's window. (I5)
void CheckWindow(const Sequence& sequence, const StepLimits& limits) {
  const int32_t num_passed = sequence.is_swapped() ? sequence.host_table.num_passed_blocks()
                                                   : sequence.table.num_passed_blocks();
  QUIRE_CHECK_EQ(
      num_passed,
      NumBlocksBeforeWindow(
          sequence.num_computed_tokens(), limits.sliding_window, limits.block_size_tokens));
}

void CheckGroup(const CoreState& state, const SequenceGroup& group) {
  // A live group has a live sequence, and all its live sequences are in the same state.
  QUIRE_CHECK(!group.is_finished());
  for (const Sequence& sequence : group.sequences()) {
    CheckSequence(sequence);
    if (state.epoch.has_value()) {
      CheckWindow(sequence, state.epoch->limits);
    }
    if (sequence.is_finished()) {
      continue;
    }
    QUIRE_CHECK_EQ(sequence.is_running(), group.is_running());
    QUIRE_CHECK_EQ(sequence.is_swapped(), group.is_swapped());

    // A sequence that reaches max_tokens has ended. (I17)
    QUIRE_CHECK(sequence.num_output_tokens() < group.request().max_tokens);
  }

  // Even at full length, a live group fits into the context, and into the blocks that pinned
  // prefixes leave. Otherwise the group might never end. (I14)
  QUIRE_CHECK(!state.epoch.has_value() || FitsEver(group, state.LimitsFor(group.request())));
}

void CheckQueues(const CoreState& state) {
  // Each live group is in exactly one of the three queues (waiting, swapped, running), and every
  // queue is in the policy's order. (I12, I13)
  state.waiting.CheckInvariants();
  QUIRE_CHECK_EQ(
      state.groups.size(),
      state.running.size() + state.swapped.size() + static_cast<size_t>(state.waiting.size()));
  auto is_known = [&state](const SequenceGroup* group) {
    auto it = state.groups.find(group->id());
    return it != state.groups.end() && it->second.get() == group;
  };
  for (const SequenceGroup* group : state.waiting.groups()) {
    QUIRE_CHECK(is_known(group) && !group->is_running() && !group->is_swapped());
  }
  for (size_t i = 0; i < state.swapped.size(); ++i) {
    QUIRE_CHECK(is_known(state.swapped[i]) && state.swapped[i]->is_swapped());
    QUIRE_CHECK(i == 0 || state.swapped[i - 1]->rank() < state.swapped[i]->rank());
  }
  for (size_t i = 0; i < state.running.size(); ++i) {
    QUIRE_CHECK(is_known(state.running[i]) && state.running[i]->is_running());
    QUIRE_CHECK(i == 0 || state.running[i - 1]->rank() < state.running[i]->rank());
  }

  // Under first come, first served a group that has never started is newer than every running
  // group. Exceptions are epochs that had a suspect, and running groups that passed others. (I14)
  const bool is_fcfs = state.config.scheduling_policy == SchedulingPolicyKind::kFcfs;
  const auto newest =
      std::find_if(state.running.rbegin(), state.running.rend(), [](const SequenceGroup* group) {
        return !group->has_overtaken;
      });
  for (const SequenceGroup* group : state.waiting.groups()) {
    QUIRE_CHECK(!is_fcfs || group->has_started() || newest == state.running.rend() ||
                (state.epoch.has_value() && state.epoch->had_suspect) ||
                (*newest)->id() < group->id());
  }

  // state.deadlines has one entry for each live request with a deadline. (I12)
  auto has_deadline = [](const auto& entry) {
    return entry.second->request().deadline != kInfiniteFuture;
  };
  QUIRE_CHECK_EQ(
      state.deadlines.size(),
      static_cast<size_t>(std::count_if(state.groups.begin(), state.groups.end(), has_deadline)));
}

void CheckCachedBlocks(const CoreState& state,
                       const SequenceGroup& group,
                       const Sequence& sequence) {
  if (sequence.block_hashes.empty() || group.IsIdle(sequence)) {
    return;
  }
  // The prefix cache lists a block under the hash of its tokens and of all tokens before them. (I8)
  const KvCacheManager& kv_cache = state.epoch->kv_cache;
  const auto block_size = static_cast<size_t>(kv_cache.block_size_tokens());
  const auto num_full = static_cast<size_t>(sequence.table.num_tokens()) / block_size;
  const std::vector<BlockHash>& hashes = sequence.block_hashes;
  for (size_t i = 0; i < std::min(num_full, hashes.size()); ++i) {
    const std::optional<BlockHash> listed = kv_cache.HashOf(sequence.table.block_ids()[i]);
    QUIRE_CHECK(!listed.has_value() || *listed == hashes[i]);
  }

  // The hashes match the tokens. Only the last hash is checked: the others were checked when they
  // were the last one.
  const Hash128& key = state.config.block_hash_key;
  const Request& request = group.request();
  const size_t last = hashes.size() - 1;
  const bool is_private = !state.config.prefix_caching || request.bypasses_prefix_cache;
  const BlockHash root =
      is_private ? PrivateRootHash(key, request.id) : RootHash(key, request.cache_salt);
  const std::vector<TokenId> token_ids = group.TokenIdsOf(sequence);
  QUIRE_CHECK(token_ids.size() >= hashes.size() * block_size);
  const auto tokens = std::span(token_ids).subspan(last * block_size, block_size);
  QUIRE_CHECK(hashes[last] == ChainHash(key, last == 0 ? root : hashes[last - 1], tokens));
}

void CheckEpoch(const CoreState& state) {
  if (!state.epoch.has_value()) {
    // Without workers nothing runs and nothing is unanswered.
    QUIRE_CHECK(state.running.empty() && state.swapped.empty() && !state.step.is_active);
    return;
  }
  const Epoch& epoch = *state.epoch;

  // Only running sequences and pinned prefixes hold blocks. (I1, I2, I5, I12)
  std::vector<const BlockTable*> tables;
  std::vector<bool> has_handle(static_cast<size_t>(epoch.handles.max_handles()), false);
  for (const SequenceGroup* group : state.running) {
    for (const Sequence& sequence : group->sequences()) {
      if (!sequence.is_running()) {
        continue;
      }
      tables.push_back(&sequence.table);

      // Each running sequence has its own handle. (I15)
      QUIRE_CHECK(epoch.handles.is_in_use(sequence.handle()));
      QUIRE_CHECK(!has_handle[sequence.handle()]);
      has_handle[sequence.handle()] = true;
      CheckCachedBlocks(state, *group, sequence);

      // A sequence that scores the prompt has at most num_scored_tokens computed tokens. The
      // log-probability of a token that was computed without being scored is never reported.
      QUIRE_CHECK(!group->ScoresPrompt(sequence) ||
                  sequence.num_computed_tokens() <= group->num_scored_tokens());
    }
  }
  std::vector<const HostTable*> host_tables;
  for (const SequenceGroup* group : state.swapped) {
    for (const Sequence& sequence : group->sequences()) {
      if (sequence.is_swapped()) {
        host_tables.push_back(&sequence.host_table);
      }
    }
  }
  // The num_blocks_to_resume that is stored in a swapped group equals a new count.
  for (SequenceGroup* group : state.swapped) {
    const auto counted = std::exchange(group->num_blocks_to_resume, std::nullopt);
    QUIRE_CHECK(!counted.has_value() || *counted == state.NumBlocksToResume(*group));
  }
  QUIRE_CHECK_EQ(static_cast<size_t>(epoch.handles.num_in_use()), tables.size());
  for (const auto& [id, prefix] : state.prefixes) {
    tables.push_back(&prefix.table);
  }
  epoch.kv_cache.CheckInvariants(tables, host_tables);

  // The pool is fenced if and only if a step is unanswered: the fence keeps returned blocks from
  // being reused. (I6)
  QUIRE_CHECK_EQ(epoch.kv_cache.pool().is_fenced(), state.step.is_active);
}

// Checks that each crash record belongs to a live request or a prefix, and that a suspect is never
// computed beside other requests.
void CheckSuspects(const CoreState& state) {
  size_t num_suspects = 0;
  for (const auto& [id, record] : state.suspects.records()) {
    QUIRE_CHECK(state.groups.contains(id) || state.prefixes.contains(id));
    QUIRE_CHECK_EQ(record.is_suspect(),
                   state.suspects.suspects().contains({record.num_crashes(), id}));
    num_suspects += record.is_suspect() ? 1 : 0;
  }
  QUIRE_CHECK_EQ(num_suspects, state.suspects.suspects().size());
  for (const UnansweredStep::Slice& slice : state.step.slices) {
    QUIRE_CHECK(!state.suspects.IsSuspect(slice.group->id()) ||
                slice.group == state.step.slices.front().group);
    QUIRE_CHECK(!state.suspects.IsSuspect(state.step.slices.front().group->id()) ||
                slice.group == state.step.slices.front().group);
  }
}

void CheckStep(const CoreState& state) {
  const UnansweredStep& step = state.step;
  if (!step.is_active) {
    // Slices and departed groups are kept only until the answer.
    QUIRE_CHECK(step.slices.empty() && step.departed.empty());
    QUIRE_CHECK(step.swap_outs.empty() && step.swap_ins.empty() && step.copies.empty());
    return;
  }
  const Epoch& epoch = *state.epoch;

  // The unanswered step is the newest step of this epoch. (I7, I11)
  QUIRE_CHECK_EQ(step.header.scheduler_incarnation, epoch.scheduler_incarnation);
  QUIRE_CHECK_EQ(step.header.group_epoch, epoch.group_epoch);
  QUIRE_CHECK_EQ(step.header.step_id, epoch.last_step_id);

  // The step is within the limits. (I15)
  QUIRE_CHECK(step.slices.size() <= static_cast<size_t>(epoch.limits.max_sequences));
  int64_t num_tokens = 0;
  std::vector<bool> is_written(static_cast<size_t>(epoch.limits.num_blocks), false);
  for (const UnansweredStep::Slice& slice : step.slices) {
    const Sequence& sequence = *slice.sequence;
    num_tokens += sequence.num_scheduled_tokens();
    if (sequence.is_finished()) {
      continue;
    }
    QUIRE_CHECK(sequence.num_scheduled_tokens() > 0);
    QUIRE_CHECK_EQ(sequence.handle(), slice.handle);
    QUIRE_CHECK_EQ(slice.samples, sequence.num_scheduled_tokens() == sequence.gap());

    // No two sequences write into the same block. If a sequence writes into a shared block, the
    // block is full after the step: its other holders found it in the prefix cache, which has only
    // full blocks. (I3, I4)
    int32_t block_size = epoch.kv_cache.block_size_tokens();
    for (int32_t i = sequence.num_computed_tokens() / block_size; i < sequence.table.num_blocks();
         ++i) {
      const BlockId block_id = sequence.table[i];
      QUIRE_CHECK(!is_written[static_cast<size_t>(block_id)]);
      is_written[static_cast<size_t>(block_id)] = true;
      QUIRE_CHECK(epoch.kv_cache.pool().ref_count(block_id) == 1 ||
                  sequence.table.NumFilled(i, block_size) == block_size);
    }
  }
  QUIRE_CHECK(num_tokens <= epoch.limits.max_tokens_per_step);
}

}  // namespace

void CheckInvariants(const CoreState& state) {
  for (const auto& [id, group] : state.groups) {
    QUIRE_CHECK(id == group->id() && id <= *state.last_request_id);
    CheckGroup(state, *group);
  }
  CheckQueues(state);
  CheckPrefixes(state);
  CheckEpoch(state);
  CheckStep(state);
  CheckSuspects(state);
}

}  // namespace quire
