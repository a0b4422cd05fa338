// From the answer to a handshake to what the group knows of a worker. The numbers are as they came:
// CheckHello and Agree (agreement.h) say whether they make sense.
//
// Thread safety: a free function, safe from any thread.
// Errors:        kFailedPrecondition CONFIG_MISMATCH: the worker speaks another version.
#ifndef QUIRE_SCHEDULER_RPC_WORKER_HELLO_CODEC_H_
#define QUIRE_SCHEDULER_RPC_WORKER_HELLO_CODEC_H_

#include "absl/status/statusor.h"

#include "proto/v1/worker.pb.h"

#include "scheduler/group/worker_hello.h"

namespace quire {

absl::StatusOr<WorkerHello> HelloOf(const v1::HandshakeResponse& response);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_WORKER_HELLO_CODEC_H_
