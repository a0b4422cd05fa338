#include "tests/scheduler/core/fairness_audit.h"

#include <algorithm>
#include <cstdlib>
#include <set>

namespace quire {
namespace {

int64_t CostOfPrompt(const Request& request) {
  return static_cast<int64_t>(request.prompt_token_ids.size());
}

int64_t CostOf(const Request& request) {
  return CostOfPrompt(request) + int64_t{2} * request.group_size() * request.max_tokens;
}

}  // namespace

void FairnessAudit::OnStarted(const Request& request) {
  service_[request.tenant] += CostOfPrompt(request);
}

void FairnessAudit::OnSampled(const Request& request) { service_[request.tenant] += 2; }

std::string FairnessAudit::Check(const RequestModels& requests) {
  std::set<std::string> waiting;
  std::map<std::string, int64_t> under_way;
  for (const auto& [id, model] : requests) {
    const Request& request = model.request;
    if (!model.is_finished() && model.was_introduced) {
      int64_t& cost = under_way[request.tenant];
      cost += CostOf(request);
      most_under_way_ = std::max(most_under_way_, cost);
    } else if (!model.is_finished()) {
      waiting.insert(request.tenant);
    }
  }
  std::erase_if(leads_, [&](const auto& entry) {
    return !waiting.contains(entry.first.first) || !waiting.contains(entry.first.second);
  });
  for (const std::string& a : waiting) {
    for (const std::string& b : waiting) {
      const int64_t lead = service_[a] - service_[b];
      const int64_t begin = leads_.try_emplace({a, b}, lead).first->second;
      if (lead - begin > 2 * most_under_way_) {
        return "tenant " + a + " got " + std::to_string(lead - begin) + " more than " + b +
               " while both waited; the most under way was " + std::to_string(most_under_way_);
      }
    }
  }
  return "";
}

}  // namespace quire
