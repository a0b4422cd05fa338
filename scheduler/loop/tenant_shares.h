// TenantShares bounds the requests that wait in a queue in front of the core: the inbox, or the
// queue of the tokenizer's pool. It counts the requests and decides which requests may enter. Under
// a policy that shares between tenants, it also bounds each tenant, by the rule of the core's queue
// (tenant_share.h). Without this bound, one tenant could fill this queue alone, although it cannot
// fill the core's queue.
//
// Resumed requests have separate bounds, as in the core's queue.
//
// Thread safety: not thread-safe.
// Cost:          O(log T) per call, for T tenants with waiting requests.
#ifndef QUIRE_SCHEDULER_LOOP_TENANT_SHARES_H_
#define QUIRE_SCHEDULER_LOOP_TENANT_SHARES_H_

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace quire {

// The status kResourceExhausted TENANT_LIMIT: the tenant's share of the queue is full.
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
    bool has_shares = false;  // true: each tenant is bounded too
  };

  explicit TenantShares(const Bounds& bounds) : bounds_(bounds) {}

  // Take counts a request of num_bytes bytes, unless that would exceed the bound on all requests
  // (kFull) or the tenant's share (kTenantFull).
  enum class Answer : uint8_t { kTaken, kFull, kTenantFull };
  [[nodiscard]] Answer Take(const std::string& tenant, bool is_resumed, int64_t num_bytes);

  // Subtracts a load that Take has added, or a part of that load.
  void Release(const std::string& tenant, bool is_resumed, const Load& load);

  // Bytes of all counted requests, new and resumed.
  int64_t num_bytes() const { return fresh_.all.num_bytes + resumed_.all.num_bytes; }

 private:
  struct Side {
    Load all;
    std::map<std::string, Load> by_tenant;  // empty unless has_shares; has no tenant without a load
  };

  const Bounds bounds_;
  Side fresh_;
  Side resumed_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_TENANT_SHARES_H_
