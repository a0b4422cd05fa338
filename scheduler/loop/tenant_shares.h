// TenantShares counts what waits at one of the doors before the core (the inbox, the tokenizer's
// pool) and says who may still come in. All of it is bounded; under a policy that shares between
// tenants so is each of them, by the rule that the core's queue has (tenant_share.h). Without it
// one tenant would fill the way to a queue that it cannot fill.
//
// Resumed requests have places of their own, as in the core's queue.
//
// Thread safety: not thread-safe.
// Cost:          O(log tenants that wait) a call.
#ifndef QUIRE_SCHEDULER_LOOP_TENANT_SHARES_H_
#define QUIRE_SCHEDULER_LOOP_TENANT_SHARES_H_

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace quire {

// A tenant has as much waiting as it may.
absl::Status TenantLimitStatus();

class TenantShares {
 public:
  struct Load {
    int64_t num_requests = 0;
    int64_t num_bytes = 0;
  };

  struct Bounds {
    static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

    Load fresh = {kNone, kNone};
    Load resumed = {kNone, kNone};
    bool has_shares = false;  // each tenant is bounded too
  };

  explicit TenantShares(const Bounds& bounds) : bounds_(bounds) {}

  // Whether a request of so many bytes may come in. If not: kFull, or kTenantFull.
  enum class Answer : uint8_t { kTaken, kFull, kTenantFull };
  [[nodiscard]] Answer Take(const std::string& tenant, bool is_resumed, int64_t num_bytes);

  // So much of what was taken is there no more.
  void Release(const std::string& tenant, bool is_resumed, const Load& load);

  // Of new and resumed ones.
  int64_t num_bytes() const { return fresh_.all.num_bytes + resumed_.all.num_bytes; }

 private:
  struct Side {
    Load all;
    std::map<std::string, Load> by_tenant;  // with shares; of those who have any
  };

  const Bounds bounds_;
  Side fresh_;
  Side resumed_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_TENANT_SHARES_H_
