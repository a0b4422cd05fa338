#include "scheduler/core/scheduling_policy.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"

namespace quire {

const std::string& SchedulingPolicy::NextTenant() const {
  QUIRE_CHECK(false);  // every request of this policy has a rank
  static const std::string& none = *new std::string();
  return none;
}

void FairSharePolicy::BeginWaiting(const std::string& tenant) {
  if (!waiting_.empty()) {
    floor_ = LeastOfWaiting();
  }
  waiting_.insert(tenant);
  int64_t& counter = counters_[tenant];
  counter = std::max(counter, floor_);
  // Whoever is not above the floor will be lifted to it when it comes back.
  std::erase_if(counters_, [this](const auto& entry) {
    return entry.second <= floor_ && !waiting_.contains(entry.first);
  });
}

void FairSharePolicy::EndWaiting(const std::string& tenant) {
  floor_ = LeastOfWaiting();
  waiting_.erase(tenant);
}

const std::string& FairSharePolicy::NextTenant() const {
  QUIRE_CHECK(!waiting_.empty());
  return *std::min_element(
      waiting_.begin(), waiting_.end(), [this](const std::string& a, const std::string& b) {
        return counters_.at(a) < counters_.at(b);
      });
}

void FairSharePolicy::OnServed(const std::string& tenant,
                               int64_t num_prompt_tokens,
                               int64_t num_output_tokens) {
  // Below the floor a counter says no more than the floor does.
  int64_t& counter = counters_.try_emplace(tenant, floor_).first->second;
  counter += kPromptTokenCost * num_prompt_tokens + kOutputTokenCost * num_output_tokens;
}

int64_t FairSharePolicy::counter(const std::string& tenant) const {
  const auto place = counters_.find(tenant);
  return place == counters_.end() ? floor_ : place->second;
}

int64_t FairSharePolicy::LeastOfWaiting() const { return counters_.at(NextTenant()); }

std::unique_ptr<SchedulingPolicy> MakeSchedulingPolicy(const CoreConfig& config) {
  switch (config.scheduling_policy) {
    case SchedulingPolicyKind::kPriority:
      return std::make_unique<PriorityPolicy>(config.priority_ageing);
    case SchedulingPolicyKind::kFairShare:
      return std::make_unique<FairSharePolicy>();
    default:
      return std::make_unique<FcfsPolicy>();
  }
}

}  // namespace quire
