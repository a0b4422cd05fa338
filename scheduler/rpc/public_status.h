// Converts a failure to the gRPC status that a client sees, with a retry delay if a retry can help.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_SCHEDULER_RPC_PUBLIC_STATUS_H_
#define QUIRE_SCHEDULER_RPC_PUBLIC_STATUS_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <grpcpp/support/status.h>

namespace quire {

// Returns the delay before a retry; zero if a retry at the same server does not help. queue_drain:
// ServingState::queue_drain, the estimated time until all waiting requests have started; zero if
// unknown. After a refusal by a full queue, the delay is queue_drain, but at least 0.1 s and at
// most a minute; if queue_drain is unknown, one second. Each delay is changed randomly by up to 20
// % either way, so that refused clients do not all return at once.
absl::Duration RetryDelayFor(std::string_view reason,
                             absl::Duration queue_drain = absl::ZeroDuration());

grpc::Status ToPublicStatus(const absl::Status& status,
                            absl::Duration queue_drain = absl::ZeroDuration());

absl::Status CancelledByClient();

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_PUBLIC_STATUS_H_
