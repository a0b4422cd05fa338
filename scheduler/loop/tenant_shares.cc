#include "scheduler/loop/tenant_shares.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "scheduler/core/tenant_share.h"

namespace quire {

absl::Status TenantLimitStatus() {
  return Error(absl::StatusCode::kResourceExhausted,
               "TENANT_LIMIT",
               "tenant: its waiting requests fill its share of the queue");
}

TenantShares::Answer TenantShares::Take(const std::string& tenant,
                                        bool is_resumed,
                                        int64_t num_bytes) {
  Side& side = is_resumed ? resumed_ : fresh_;
  const Load& max = is_resumed ? bounds_.resumed : bounds_.fresh;
  const int64_t factor = is_resumed ? kShareFactorOfResumed : 1;
  // A request with num_bytes 0 is never refused for bytes. The inbox always passes 0 bytes.
  if (side.all.num_requests >= max.num_requests ||
      (num_bytes > 0 && num_bytes > max.num_bytes - side.all.num_bytes)) {
    return Answer::kFull;
  }
  if (bounds_.has_shares) {
    const auto [held, is_first] = side.by_tenant.try_emplace(tenant);
    const Load& load = held->second;
    if (!is_first &&
        (IsShareFull(load.num_requests, 1, side.all.num_requests, max.num_requests, factor) ||
         IsShareFull(load.num_bytes, num_bytes, side.all.num_bytes, max.num_bytes, factor))) {
      return Answer::kTenantFull;
    }
    ++held->second.num_requests;
    held->second.num_bytes += num_bytes;
  }
  ++side.all.num_requests;
  side.all.num_bytes += num_bytes;
  return Answer::kTaken;
}

void TenantShares::Release(const std::string& tenant, bool is_resumed, const Load& load) {
  Side& side = is_resumed ? resumed_ : fresh_;
  side.all.num_requests -= load.num_requests;
  side.all.num_bytes -= load.num_bytes;
  QUIRE_CHECK(side.all.num_requests >= 0 && side.all.num_bytes >= 0);
  // TaskPool releases a request's count first and its bytes later. If the request had 0 bytes, the
  // first release may have erased the tenant, so the second release must do nothing.
  if (!bounds_.has_shares || (load.num_requests == 0 && load.num_bytes == 0)) {
    return;
  }
  const auto held = side.by_tenant.find(tenant);
  QUIRE_CHECK(held != side.by_tenant.end());
  held->second.num_requests -= load.num_requests;
  held->second.num_bytes -= load.num_bytes;
  if (held->second.num_requests == 0 && held->second.num_bytes == 0) {
    side.by_tenant.erase(held);
  }
}

}  // namespace quire
