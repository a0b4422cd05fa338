#include "scheduler/core/waiting_queue.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

#include "common/base/check.h"
#include "common/base/math.h"
#include "scheduler/core/tenant_share.h"

namespace quire {
namespace {

struct Bounds {
  int64_t max_requests = 0;
  int64_t max_tokens = 0;
  int64_t share_factor = 1;  // see IsShareFull
};

Bounds BoundsOf(bool is_resumed,
                const CoreConfig& config,
                const std::optional<StepLimits>& limits) {
  if (!is_resumed) {
    return {.max_requests = config.max_queued_requests, .max_tokens = config.max_queued_tokens};
  }
  constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
  Bounds bounds{.max_requests = config.max_resumed_requests,
                .max_tokens = kUnbounded,
                .share_factor = kShareFactorOfResumed};
  if (limits.has_value()) {
    const int64_t under_way = int64_t{2} * limits->max_sequences * limits->max_model_len;
    bounds.max_tokens = CheckedAdd(config.max_queued_tokens, under_way).value_or(kUnbounded);
  }
  return bounds;
}

}  // namespace

WaitingQueue::Refusal WaitingQueue::RefusalOf(const Request& request,
                                              const CoreConfig& config,
                                              const std::optional<StepLimits>& limits) const {
  const Bounds bounds = BoundsOf(request.is_resumed, config, limits);
  const Load& all = all_.Of(request);
  const int64_t num_tokens = request.num_known_tokens();
  if (all.num_requests >= bounds.max_requests) {
    return Refusal::kFull;
  }
  if (all.num_tokens + num_tokens > bounds.max_tokens) {
    return Refusal::kTokensFull;
  }
  const auto tenant = unranked_.find(request.tenant);
  if (tenant == unranked_.end() || tenant->second.loads.Of(request) == Load{}) {
    return Refusal::kNone;  // one request of each tenant may wait, whatever the tenant's share is
  }
  const Load& held = tenant->second.loads.Of(request);
  const int64_t factor = bounds.share_factor;
  const bool is_full =
      IsShareFull(held.num_requests, 1, all.num_requests, bounds.max_requests, factor) ||
      IsShareFull(held.num_tokens, num_tokens, all.num_tokens, bounds.max_tokens, factor);
  return is_full ? Refusal::kTenantFull : Refusal::kNone;
}

void WaitingQueue::Add(SequenceGroup& group) {
  const std::optional<int64_t> rank = policy_.RankOf(group.request());
  if (rank.has_value()) {
    group.SetRank(*rank);
    Return(group);
    return;
  }
  Tenant& tenant = unranked_[group.request().tenant];
  QUIRE_CHECK(tenant.groups.empty() || tenant.groups.rbegin()->first < group.id());
  if (tenant.groups.empty()) {
    policy_.BeginWaiting(group.request().tenant);
  }
  tenant.groups.emplace_hint(tenant.groups.end(), group.id(), &group);
  tenant.loads.Add(group, 1);
  all_.Add(group, 1);
}

void WaitingQueue::Return(SequenceGroup& group) {
  QUIRE_CHECK(ranked_.insert(&group).second);
  all_.Add(group, 1);
}

SequenceGroup& WaitingQueue::front() const {
  QUIRE_CHECK(!empty());
  return ranked_.empty() ? *unranked_.find(policy_.NextTenant())->second.groups.begin()->second
                         : **ranked_.begin();
}

SequenceGroup& WaitingQueue::PopFront() {
  SequenceGroup& group = front();
  Remove(group);
  if (!group.has_rank()) {
    group.SetRank(++num_started_);
    policy_.OnServed(group.request().tenant, group.request().num_prompt_tokens(), 0);
  }
  return group;
}

void WaitingQueue::Remove(SequenceGroup& group) {
  all_.Add(group, -1);
  if (group.has_rank()) {
    QUIRE_CHECK_EQ(ranked_.erase(&group), 1U);
    return;
  }
  auto of_tenant = unranked_.find(group.request().tenant);
  QUIRE_CHECK(of_tenant != unranked_.end());
  Tenant& tenant = of_tenant->second;
  QUIRE_CHECK_EQ(tenant.groups.erase(group.id()), 1U);
  tenant.loads.Add(group, -1);
  if (tenant.groups.empty()) {
    policy_.EndWaiting(of_tenant->first);
    unranked_.erase(of_tenant);
  }
}

void WaitingQueue::Loads::Add(const SequenceGroup& group, int32_t times) {
  Load& load = group.request().is_resumed ? resumed : fresh;
  load.num_requests += times;
  load.num_tokens += times * group.num_tokens_at_arrival();
  load.num_sequences += int64_t{times} * group.request().num_live_sequences();
}

CompletionEstimate::Work WaitingQueue::work() const {
  return {
      .num_sequences = static_cast<double>(all_.fresh.num_sequences + all_.resumed.num_sequences),
      .num_prompt_tokens = static_cast<double>(num_tokens())};
}

CompletionEstimate::Work WaitingQueue::AheadOf(const Request& request) const {
  const std::optional<int64_t> rank = policy_.RankOf(request);
  if (rank.has_value()) {
    const bool is_last = ranked_.empty() || (*ranked_.rbegin())->rank().value <= *rank;
    return is_last ? work() : CompletionEstimate::Work{};
  }
  if (empty()) {
    return {};
  }
  const auto own = unranked_.find(request.tenant);
  const size_t num_own = own == unranked_.end() ? 0 : own->second.groups.size();
  const size_t num_others = unranked_.size() - (num_own > 0 ? 1 : 0);
  const size_t num_turns = ranked_.size() + num_own + (num_own + 1) * num_others;
  const double share = std::min(1.0, static_cast<double>(num_turns) / size());
  const CompletionEstimate::Work all = work();
  return {.num_sequences = share * all.num_sequences,
          .num_prompt_tokens = share * all.num_prompt_tokens};
}

std::vector<SequenceGroup*> WaitingQueue::FirstRanked(size_t most) const {
  const size_t count = std::min(most, ranked_.size());
  return {ranked_.begin(), std::next(ranked_.begin(), static_cast<int64_t>(count))};
}

std::vector<SequenceGroup*> WaitingQueue::groups() const {
  std::vector<SequenceGroup*> groups(ranked_.begin(), ranked_.end());
  for (const auto& [name, tenant] : unranked_) {
    for (const auto& [id, group] : tenant.groups) {
      groups.push_back(group);
    }
  }
  return groups;
}

void WaitingQueue::CheckInvariants() const {
  Loads counted;
  for (const SequenceGroup* group : groups()) {
    counted.Add(*group, 1);
  }
  QUIRE_CHECK(counted == all_);

  // The set ranked_ keeps its order only as long as no rank changes.
  QUIRE_CHECK(std::is_sorted(ranked_.begin(), ranked_.end(), IsAhead()));
  for (const auto& [name, tenant] : unranked_) {
    QUIRE_CHECK(!tenant.groups.empty());
    Loads loads;
    for (const auto& [id, group] : tenant.groups) {
      QUIRE_CHECK(!group->has_rank() && group->request().tenant == name && group->id() == id);
      loads.Add(*group, 1);
    }
    QUIRE_CHECK(loads == tenant.loads);
  }
}

}  // namespace quire
