#include "scheduler/core/waiting_queue.h"

#include <algorithm>

#include "common/base/check.h"

namespace quire {
namespace {

int64_t NumPromptTokens(const Request& request) {
  return static_cast<int64_t>(request.prompt_token_ids.size());
}

}  // namespace

WaitingQueue::Refusal WaitingQueue::RefusalOf(const Request& request,
                                              const CoreConfig& config) const {
  if (request.is_resumed) {
    return resumed_.num_requests >= config.max_resumed_requests ? Refusal::kFull : Refusal::kNone;
  }
  if (new_.num_requests >= config.max_queued_requests) {
    return Refusal::kFull;
  }
  if (new_.num_prompt_tokens + NumPromptTokens(request) > config.max_queued_tokens) {
    return Refusal::kTokensFull;
  }
  return Refusal::kNone;
}

void WaitingQueue::Add(SequenceGroup& group) {
  const std::optional<int64_t> rank = policy_.RankOf(group.request());
  if (rank.has_value()) {
    group.SetRank(*rank);
    Return(group);
    return;
  }
  const std::string& tenant = group.request().tenant;
  std::deque<SequenceGroup*>& groups = unranked_[tenant];
  QUIRE_CHECK(groups.empty() || groups.back()->id() < group.id());
  if (groups.empty()) {
    policy_.BeginWaiting(tenant);
  }
  groups.push_back(&group);
  Count(group, 1);
}

void WaitingQueue::Return(SequenceGroup& group) {
  QUIRE_CHECK(ranked_.insert(&group).second);
  Count(group, 1);
}

SequenceGroup& WaitingQueue::front() const {
  QUIRE_CHECK(!empty());
  return ranked_.empty() ? *unranked_.at(policy_.NextTenant()).front() : **ranked_.begin();
}

SequenceGroup& WaitingQueue::PopFront() {
  SequenceGroup& group = front();
  Remove(group);
  if (!group.has_rank()) {
    group.SetRank(++num_started_);
    policy_.OnServed(group.request().tenant, NumPromptTokens(group.request()), 0);
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
  std::deque<SequenceGroup*>& groups = of_tenant->second;
  const auto place = std::find(groups.begin(), groups.end(), &group);
  QUIRE_CHECK(place != groups.end());
  groups.erase(place);
  if (groups.empty()) {
    policy_.EndWaiting(of_tenant->first);
    unranked_.erase(of_tenant);
  }
}

void WaitingQueue::Count(const SequenceGroup& group, int32_t times) {
  Load& load = group.request().is_resumed ? resumed_ : new_;
  load.num_requests += times;
  load.num_prompt_tokens += times * NumPromptTokens(group.request());
}

std::vector<SequenceGroup*> WaitingQueue::groups() const {
  std::vector<SequenceGroup*> groups(ranked_.begin(), ranked_.end());
  for (const auto& [tenant, of_tenant] : unranked_) {
    groups.insert(groups.end(), of_tenant.begin(), of_tenant.end());
  }
  return groups;
}

void WaitingQueue::CheckInvariants() const {
  Load counted[2];
  for (const SequenceGroup* group : groups()) {
    Load& load = counted[group->request().is_resumed ? 1 : 0];
    ++load.num_requests;
    load.num_prompt_tokens += NumPromptTokens(group->request());
  }
  QUIRE_CHECK(counted[0] == new_ && counted[1] == resumed_);

  // A set keeps its order only as long as ranks do not change.
  QUIRE_CHECK(std::is_sorted(ranked_.begin(), ranked_.end(), IsAhead()));
  for (const auto& [tenant, of_tenant] : unranked_) {
    QUIRE_CHECK(!of_tenant.empty());
    for (size_t i = 0; i < of_tenant.size(); ++i) {
      QUIRE_CHECK(!of_tenant[i]->has_rank() && of_tenant[i]->request().tenant == tenant);
      QUIRE_CHECK(i == 0 || of_tenant[i - 1]->id() < of_tenant[i]->id());
    }
  }
}

}  // namespace quire
