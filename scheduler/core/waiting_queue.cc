#include "scheduler/core/waiting_queue.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "common/base/check.h"

namespace quire {
namespace {

// A scheduler before had its queue, and sequences under way.
int64_t MaxResumedTokens(const CoreConfig& config, const std::optional<StepLimits>& limits) {
  return limits.has_value()
             ? config.max_queued_tokens + int64_t{limits->max_sequences} * limits->max_model_len
             : std::numeric_limits<int64_t>::max();
}

}  // namespace

WaitingQueue::Refusal WaitingQueue::RefusalOf(const Request& request,
                                              const CoreConfig& config,
                                              const std::optional<StepLimits>& limits) const {
  if (request.is_resumed) {
    if (resumed_.num_requests >= config.max_resumed_requests) {
      return Refusal::kFull;
    }
    const int64_t num_tokens = resumed_.num_tokens + request.num_known_tokens();
    return num_tokens > MaxResumedTokens(config, limits) ? Refusal::kTokensFull : Refusal::kNone;
  }
  if (new_.num_requests >= config.max_queued_requests) {
    return Refusal::kFull;
  }
  if (new_.num_tokens + request.num_known_tokens() > config.max_queued_tokens) {
    return Refusal::kTokensFull;
  }
  const auto tenant = unranked_.find(request.tenant);
  if (tenant == unranked_.end() || tenant->second.load == Load{}) {
    return Refusal::kNone;  // whatever the bounds are, one request of each may wait
  }
  const Load& held = tenant->second.load;
  const bool is_full =
      IsShareFull(held.num_requests, 1, new_.num_requests, config.max_queued_requests) ||
      IsShareFull(
          held.num_tokens, request.num_known_tokens(), new_.num_tokens, config.max_queued_tokens);
  return is_full ? Refusal::kTenantFull : Refusal::kNone;
}

bool WaitingQueue::IsShareFull(int64_t num_held,
                               int64_t num_more,
                               int64_t num_of_all,
                               int64_t max) {
  return num_held + num_more > max - (num_of_all + num_more);
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
  tenant.load.Add(group, group.request().is_resumed ? 0 : 1);
  Count(group, 1);
}

void WaitingQueue::Return(SequenceGroup& group) {
  QUIRE_CHECK(ranked_.insert(&group).second);
  Count(group, 1);
}

SequenceGroup& WaitingQueue::front() const {
  QUIRE_CHECK(!empty());
  return ranked_.empty() ? *unranked_.at(policy_.NextTenant()).groups.begin()->second
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
  Count(group, -1);
  if (group.has_rank()) {
    QUIRE_CHECK_EQ(ranked_.erase(&group), 1U);
    return;
  }
  auto of_tenant = unranked_.find(group.request().tenant);
  QUIRE_CHECK(of_tenant != unranked_.end());
  Tenant& tenant = of_tenant->second;
  QUIRE_CHECK_EQ(tenant.groups.erase(group.id()), 1U);
  tenant.load.Add(group, group.request().is_resumed ? 0 : -1);
  if (tenant.groups.empty()) {
    policy_.EndWaiting(of_tenant->first);
    unranked_.erase(of_tenant);
  }
}

void WaitingQueue::Load::Add(const SequenceGroup& group, int32_t times) {
  num_requests += times;
  num_tokens += times * group.num_tokens_at_arrival();
  num_sequences += int64_t{times} * group.request().num_live_sequences();
}

void WaitingQueue::Count(const SequenceGroup& group, int32_t times) {
  (group.request().is_resumed ? resumed_ : new_).Add(group, times);
}

CompletionEstimate::Work WaitingQueue::work() const {
  return {.num_sequences = static_cast<double>(new_.num_sequences + resumed_.num_sequences),
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
  Load counted[2];
  for (const SequenceGroup* group : groups()) {
    counted[group->request().is_resumed ? 1 : 0].Add(*group, 1);
  }
  QUIRE_CHECK(counted[0] == new_ && counted[1] == resumed_);

  // A set keeps its order only as long as ranks do not change.
  QUIRE_CHECK(std::is_sorted(ranked_.begin(), ranked_.end(), IsAhead()));
  for (const auto& [name, tenant] : unranked_) {
    QUIRE_CHECK(!tenant.groups.empty());
    Load load;
    for (const auto& [id, group] : tenant.groups) {
      QUIRE_CHECK(!group->has_rank() && group->request().tenant == name && group->id() == id);
      load.Add(*group, group->request().is_resumed ? 0 : 1);
    }
    QUIRE_CHECK(load == tenant.load);
  }
}

}  // namespace quire
