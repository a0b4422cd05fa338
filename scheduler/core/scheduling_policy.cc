#include "scheduler/core/scheduling_policy.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace quire {

std::string_view SchedulingPolicy::NextTenant() const {
  QUIRE_CHECK(false);  // every request of this policy has a rank
  return {};
}

bool FairSharePolicy::IsAhead::operator()(const Account* a, const Account* b) const {
  ++*num_compared;
  return a->counter != b->counter ? a->counter < b->counter : a->since < b->since;
}

void FairSharePolicy::BeginWaiting(const std::string& tenant) {
  floor_ = Floor();
  const auto place = accounts_.find(tenant);
  Account& account = place == accounts_.end() ? Open(tenant) : place->second;
  Charge(account, std::max<int64_t>(0, floor_ - account.counter));
  Move(account, /*is_waiting=*/true);
}

void FairSharePolicy::EndWaiting(const std::string& tenant) {
  floor_ = Floor();
  Move(accounts_.find(tenant)->second, /*is_waiting=*/false);
  ForgetBeyondBound();
}

std::string_view FairSharePolicy::NextTenant() const {
  QUIRE_CHECK(!waiting_.empty());
  return (*waiting_.begin())->tenant;
}

void FairSharePolicy::OnServed(const std::string& tenant,
                               int64_t num_prompt_tokens,
                               int64_t num_output_tokens) {
  const auto place = accounts_.find(tenant);
  Account& account = place == accounts_.end() ? Open(tenant) : place->second;
  Charge(account, kPromptTokenCost * num_prompt_tokens + kOutputTokenCost * num_output_tokens);
  ForgetBeyondBound();
}

int64_t FairSharePolicy::counter(const std::string& tenant) const {
  const auto place = accounts_.find(tenant);
  const int64_t least = Floor();
  return place == accounts_.end() ? least : std::max(least, place->second.counter);
}

int64_t FairSharePolicy::Floor() const {
  return waiting_.empty() ? floor_ : std::max(floor_, (*waiting_.rbegin())->counter);
}

FairSharePolicy::Account& FairSharePolicy::Open(const std::string& tenant) {
  const auto opened = accounts_.try_emplace(std::pmr::string(std::string_view(tenant))).first;
  Account& account = opened->second;
  account.tenant = opened->first;
  account.counter = floor_;
  account.since = ++num_moves_;
  account.place = absent_.insert(&account).first;
  return account;
}

void FairSharePolicy::ForgetBeyondBound() {
  if (absent_.size() <= max_absent_tenants_) {
    return;
  }
  const auto least = absent_.begin();
  floor_ = std::max(floor_, (*least)->counter);
  const auto forgotten = accounts_.find((*least)->tenant);
  absent_.erase(least);
  accounts_.erase(forgotten);
}

void FairSharePolicy::Move(Account& account, bool is_waiting) {
  QUIRE_CHECK(account.is_waiting != is_waiting);
  LineOf(account).erase(account.place);
  account.is_waiting = is_waiting;
  account.since = ++num_moves_;
  account.place = LineOf(account).insert(&account).first;
}

void FairSharePolicy::Charge(Account& account, int64_t cost) {
  Line& line = LineOf(account);
  const auto next = std::next(account.place);
  if (next == line.end() || account.counter + cost < (*next)->counter) {
    // The account keeps its position: the common case, since each output token is charged alone.
    account.counter += cost;
    return;
  }
  line.erase(account.place);
  account.counter += cost;
  account.place = line.insert(&account).first;
}

std::unique_ptr<SchedulingPolicy> MakeSchedulingPolicy(const CoreConfig& config) {
  switch (config.scheduling_policy) {
    case SchedulingPolicyKind::kPriority:
      return std::make_unique<PriorityPolicy>(config.priority_ageing);
    case SchedulingPolicyKind::kFairShare:
      // This many absent tenants suffice even if every request resumed from an earlier scheduler
      // has a different tenant.
      return std::make_unique<FairSharePolicy>(
          static_cast<size_t>(std::max<int64_t>(0, config.max_resumed_requests)));
    default:
      return std::make_unique<FcfsPolicy>();
  }
}

}  // namespace quire
