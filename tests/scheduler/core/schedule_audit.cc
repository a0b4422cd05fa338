#include "tests/scheduler/core/schedule_audit.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace quire {
namespace {

// Tokens that a request can make the worker compute: all of its tokens, again after it has been
// preempted once while it was not the oldest, and once more for a row that was not finite.
int64_t WorkOf(const RequestModel& model) {
  const auto num_prompt = static_cast<int64_t>(model.request.prompt_token_ids.size());
  return 3 * model.request.group_size() * (num_prompt + model.request.max_tokens);
}

const RequestModel* OldestLive(const RequestModels& requests) {
  auto oldest = std::find_if(requests.begin(), requests.end(), [](const auto& entry) {
    return !entry.second.is_finished();
  });
  return oldest == requests.end() ? nullptr : &oldest->second;
}

}  // namespace

ScheduleAudit::ScheduleAudit(const CoreConfig& config,
                             const StepLimits& limits,
                             int32_t swap_delay_steps)
    : config_(config),
      limits_(limits),
      swap_delay_steps_(swap_delay_steps),
      owners_(static_cast<size_t>(limits.max_sequences)) {}

std::string ScheduleAudit::OnPlan(const StepPlan& plan,
                                  const RequestModels& requests,
                                  const CoreStats& stats) {
  const std::set<uint64_t> preempted = TakeReleases(plan.releases, requests);
  std::set<uint64_t> started;
  for (const SequenceIntroduction& introduction : plan.introductions) {
    const uint64_t id = introduction.sampling.seed;
    owners_[introduction.handle] = Owner{id, introduction.sequence_index};
    if (has_started_.insert(id).second) {
      started.insert(id);
    }
  }
  std::string fault = CheckOrder(preempted, requests);
  if (fault.empty()) {
    fault = CheckOldestComputes(plan, requests, stats);
  }
  return fault.empty() ? CheckWatermark(started, stats) : fault;
}

// Who gives back a handle and has not ended is preempted. Beams fall away one by one while their
// request goes on: it is preempted when none is left.
std::set<uint64_t> ScheduleAudit::TakeReleases(const std::vector<SequenceHandle>& releases,
                                               const RequestModels& requests) {
  std::set<uint64_t> preempted;
  for (SequenceHandle handle : releases) {
    const Owner owner = std::exchange(owners_[handle], std::nullopt).value_or(Owner{});
    const auto found = requests.find(owner.id);
    if (found == requests.end() || found->second.is_finished()) {
      continue;
    }
    const RequestModel& model = found->second;
    const bool has_ended =
        model.is_beam_search()
            ? Running().count(owner.id) > 0
            : model.sequences[static_cast<size_t>(owner.sequence_index)].is_finished;
    if (!has_ended) {
      preempted.insert(owner.id);
      has_started_.erase(owner.id);
    }
  }
  return preempted;
}

std::string ScheduleAudit::CheckOrder(const std::set<uint64_t>& preempted,
                                      const RequestModels& requests) const {
  const std::set<uint64_t> running = Running();
  if (!is_fcfs()) {
    return "";
  }
  for (uint64_t id : preempted) {
    const bool is_newest = running.empty() || *running.rbegin() < id;
    if (!is_newest && !requests.at(id).had_non_finite) {
      return "preempted request " + std::to_string(id) + " is newer than all that run on";
    }
  }
  return "";
}

std::string ScheduleAudit::CheckOldestComputes(const StepPlan& plan,
                                               const RequestModels& requests,
                                               const CoreStats& stats) const {
  const RequestModel* oldest = OldestLive(requests);
  // Blocks on their way to the host are waited for, and a row that was not finite waits for newer
  // requests to give back theirs: OnApplied bounds both.
  if (!is_fcfs() || oldest == nullptr || plan.slices.empty() || oldest->had_non_finite ||
      stats.num_leaving_blocks > 0) {
    return "";
  }
  const bool computes = std::any_of(
      plan.slices.begin(), plan.slices.end(), [this, oldest](const SequenceSlice& slice) {
        return owners_[slice.handle]->id == oldest->request.id.value();
      });
  return computes ? "" : "the oldest request computes in every step";
}

std::string ScheduleAudit::CheckWatermark(const std::set<uint64_t>& started,
                                          const CoreStats& stats) const {
  if (started.empty() || Running().size() < 2) {
    return "";
  }
  const double watermark = std::ceil(config_.watermark * (limits_.num_blocks - 1));
  return stats.num_free_blocks >= watermark ? "" : "who starts beside others spares the watermark";
}

std::string ScheduleAudit::OnExecuted(const StepPlan& plan,
                                      const FakeWorker& worker,
                                      const std::vector<CacheDomain>& domains) const {
  for (const SequenceIntroduction& introduction : plan.introductions) {
    const uint64_t id = introduction.sampling.seed;
    const CacheDomain& taker = domains[id];
    for (BlockId block_id : introduction.block_ids) {
      if (block_id == kNullBlockId) {
        continue;  // the sliding window has passed it
      }
      const uint64_t writer = worker.WriterOf(block_id);
      const CacheDomain& giver = domains[writer];
      const bool is_own = writer == id;
      if (!is_own &&
          (writer == 0 || giver.is_bypassing || taker.is_bypassing || giver.salt != taker.salt)) {
        return "request " + std::to_string(id) + " may begin with what request " +
               std::to_string(writer) + " computed";
      }
    }
  }
  return "";
}

std::string ScheduleAudit::OnApplied(const RequestModels& requests) {
  const RequestModel* oldest = OldestLive(requests);
  if (oldest == nullptr || !is_fcfs()) {
    oldest_id_.reset();
  } else if (oldest_id_ != oldest->request.id.value()) {
    oldest_id_ = oldest->request.id.value();
    int64_t work = 0;
    for (const auto& [id, model] : requests) {
      work += model.is_finished() ? 0 : WorkOf(model);
    }
    num_steps_left_ = (1 + swap_delay_steps_) * (work + 16);
  } else if (--num_steps_left_ < 0) {
    return "the oldest request ends in a bounded number of steps";
  }
  return "";
}

std::set<uint64_t> ScheduleAudit::Running() const {
  std::set<uint64_t> running;
  for (const std::optional<Owner>& owner : owners_) {
    if (owner.has_value()) {
      running.insert(owner->id);
    }
  }
  return running;
}

}  // namespace quire
