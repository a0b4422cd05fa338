#include "tests/scheduler/core/schedule_audit.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

namespace quire {
namespace {

// Tokens that a request can make the worker compute. It may compute all its tokens three times. It
// does so once, again after a preemption while it was not the first, and again after a row that was
// not finite.
int64_t WorkOf(const RequestModel& model) {
  const auto num_prompt = static_cast<int64_t>(model.request.prompt_token_ids.size());
  return int64_t{3} * model.request.group_size() * (num_prompt + model.request.max_tokens);
}

}  // namespace

ScheduleAudit::ScheduleAudit(const CoreConfig& config,
                             const StepLimits& limits,
                             int32_t swap_delay_steps)
    : config_(config),
      is_cheapest_chosen_(config.preemption_mode == PreemptionMode::kAuto),
      limits_(limits),
      swap_delay_steps_(swap_delay_steps),
      owners_(static_cast<size_t>(limits.max_sequences)),
      overtaking_(config, limits) {}

std::string ScheduleAudit::OnPlan(const StepPlan& plan,
                                  const RequestModels& requests,
                                  const CoreStats& stats) {
  std::set<uint64_t> preempted = TakeReleases(plan.releases, requests);
  std::set<uint64_t> started;
  for (const SequenceIntroduction& introduction : plan.introductions) {
    const uint64_t id = introduction.sampling.seed;
    owners_[introduction.handle] = Owner{id, introduction.sequence_index};
    if (has_started_.insert(id).second) {
      started.insert(id);
      start_numbers_.emplace(id, static_cast<int64_t>(start_numbers_.size()));
    }
  }
  preempted.merge(TakeUnknown(requests, stats));
  had_suspect_ = had_suspect_ || stats.num_suspects > 0;
  const std::string passing = overtaking_.OnPlan(plan, requests, stats);
  std::string fault = stats.num_suspects > 0 ? CheckAlone(plan) : passing;
  if (fault.empty() && !had_suspect_) {
    fault = CheckOrder(preempted, requests);
  }
  if (fault.empty() && !had_suspect_) {
    fault = CheckFirstComputes(plan, started, requests, stats);
  }
  if (fault.empty()) {
    fault = CheckIntroductions(plan);
  }
  return fault.empty() ? CheckWatermark(started, stats) : fault;
}

// Leaves out the two largest introductions, which may exceed the budget: the first one, and that of
// a group that is owed its turn.
std::string ScheduleAudit::CheckIntroductions(const StepPlan& plan) const {
  std::vector<int64_t> bytes;
  for (const SequenceIntroduction& introduction : plan.introductions) {
    bytes.push_back(IntroductionBytes(static_cast<int64_t>(introduction.token_ids.size()),
                                      static_cast<int64_t>(introduction.block_ids.size()),
                                      introduction.sampling));
  }
  std::sort(bytes.rbegin(), bytes.rend());
  const int64_t num_bytes = std::accumulate(
      bytes.begin() + std::min<int64_t>(2, std::ssize(bytes)), bytes.end(), int64_t{0});
  return num_bytes <= config_.introduction_budget_bytes
             ? ""
             : "I20: introductions of one step take no more than their budget";
}

// A request that releases a handle before its end is preempted. Beams release handles one by one
// while their request runs; the request is preempted when it has no handle left.
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

// A fork that the worker never knew has no handle to release. If its leader has ended, only the
// core's count of running requests shows the preemption.
std::set<uint64_t> ScheduleAudit::TakeUnknown(const RequestModels& requests,
                                              const CoreStats& stats) {
  const std::set<uint64_t> running = Running();
  std::set<uint64_t> unknown;
  int64_t num_started = 0;
  for (const auto& [id, model] : requests) {
    if (!model.is_finished() && has_started_.count(id) > 0) {
      ++num_started;
      if (running.count(id) == 0) {
        unknown.insert(id);
      }
    }
  }
  if (num_started - static_cast<int64_t>(unknown.size()) != stats.num_running_requests) {
    return {};  // some of them run, and sit this step out
  }
  for (uint64_t id : unknown) {
    has_started_.erase(id);
  }
  return unknown;
}

// The request with the smaller rank is served first. Fair share gives a rank only when a request
// starts; within an epoch requests start in the order of their ranks.
ScheduleAudit::Rank ScheduleAudit::RankOf(const Request& request) const {
  const uint64_t id = request.id.value();
  switch (config_.scheduling_policy) {
    case SchedulingPolicyKind::kFcfs:
      return {0, id};
    case SchedulingPolicyKind::kPriority:
      return {request.arrival + request.priority * config_.priority_ageing, id};
    case SchedulingPolicyKind::kFairShare:
      break;
  }
  const auto started = start_numbers_.find(id);
  return {started == start_numbers_.end() ? kInfiniteFuture : started->second, id};
}

const RequestModel* ScheduleAudit::FirstLive(const RequestModels& requests) const {
  const RequestModel* first = nullptr;
  for (const auto& [id, model] : requests) {
    if (!model.is_finished() &&
        (first == nullptr || RankOf(model.request) < RankOf(first->request))) {
      first = &model;
    }
  }
  return first;
}

std::string ScheduleAudit::CheckOrder(const std::set<uint64_t>& preempted,
                                      const RequestModels& requests) const {
  for (uint64_t id : preempted) {
    if (!IsInOrder(id, requests) && !requests.at(id).was_recomputed()) {
      return "preempted request " + std::to_string(id) + " is behind those that run on";
    }
  }
  return "";
}

bool ScheduleAudit::IsInOrder(uint64_t preempted_id, const RequestModels& requests) const {
  const Rank rank = RankOf(requests.at(preempted_id).request);
  for (uint64_t id : Running()) {
    const Rank other = RankOf(requests.at(id).request);
    const bool is_alike = is_cheapest_chosen_ && other.first == rank.first;
    if (rank < other && !is_alike) {
      return false;
    }
  }
  // A request ahead of it needed its blocks. The worker may not know that request's sequences yet.
  return RankOf(FirstLive(requests)->request) < rank;
}

std::string ScheduleAudit::CheckFirstComputes(const StepPlan& plan,
                                              const std::set<uint64_t>& started,
                                              const RequestModels& requests,
                                              const CoreStats& stats) const {
  const RequestModel* first = FirstLive(requests);
  // The first request may wait for blocks on their way to the host, or, after a row that was not
  // finite, for other requests' blocks. So may a request that arrives with a better rank. OnApplied
  // bounds these waits.
  if (config_.scheduling_policy != SchedulingPolicyKind::kFcfs || first == nullptr ||
      plan.slices.empty() || first->was_recomputed() || stats.num_leaving_blocks > 0) {
    return "";
  }
  // An older request preempted it. It waits until newer requests end.
  if (is_cheapest_chosen_ && has_started_.count(first->request.id.value()) == 0) {
    return started.empty() ? "" : "nobody starts before the first request";
  }
  if (overtaking_.IsPassing() && has_started_.count(first->request.id.value()) == 0) {
    return "";
  }
  const bool computes = std::any_of(
      plan.slices.begin(), plan.slices.end(), [this, first](const SequenceSlice& slice) {
        return owners_[slice.handle]->id == first->request.id.value();
      });
  return computes ? "" : "the first request computes in every step";
}

std::string ScheduleAudit::CheckAlone(const StepPlan& plan) const {
  const bool is_alone =
      std::all_of(plan.slices.begin(), plan.slices.end(), [this, &plan](const auto& slice) {
        return owners_[slice.handle]->id == owners_[plan.slices.front().handle]->id;
      });
  return is_alone ? "" : "who is suspected of crashes computes alone";
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
  const RequestModel* first = FirstLive(requests);
  const bool is_ranked = config_.scheduling_policy != SchedulingPolicyKind::kFairShare;
  if (first == nullptr || !is_ranked) {
    first_id_.reset();
  } else if (first_id_ != first->request.id.value()) {
    first_id_ = first->request.id.value();
    int64_t work = 0;
    for (const auto& [id, model] : requests) {
      work += model.is_finished() ? 0 : WorkOf(model);
    }
    num_steps_left_ = (1 + swap_delay_steps_) * (work + 16);
  } else if (--num_steps_left_ < 0) {
    return "the first request ends in a bounded number of steps";
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
