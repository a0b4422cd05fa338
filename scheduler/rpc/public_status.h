// What a client sees of a failure: grpc_status with the delay after which a retry may help.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_SCHEDULER_RPC_PUBLIC_STATUS_H_
#define QUIRE_SCHEDULER_RPC_PUBLIC_STATUS_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <grpcpp/support/status.h>

namespace quire {

// Zero for reasons where a retry at the same server does not help. Who is refused for what waits is
// told how long that takes to drain, from 0.1 to 60 s; a second, while that is not known (zero).
// Spread by 20 % either way, so that clients refused together do not come back together.
absl::Duration RetryDelayFor(std::string_view reason,
                             absl::Duration queue_drain = absl::ZeroDuration());

grpc::Status ToPublicStatus(const absl::Status& status,
                            absl::Duration queue_drain = absl::ZeroDuration());

// What a call ends with whose client has left.
absl::Status CancelledByClient();

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_PUBLIC_STATUS_H_
