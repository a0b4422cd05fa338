// Makes a WorkerHello from a worker's answer to a handshake. The numbers are not checked here:
// CheckHello and Agree (agreement.h) do that.
//
// Thread safety: a free function, safe from any thread.
// Errors:        kFailedPrecondition CONFIG_MISMATCH: the worker speaks another version of the
//                worker protocol.
#ifndef QUIRE_SCHEDULER_RPC_WORKER_HELLO_CODEC_H_
#define QUIRE_SCHEDULER_RPC_WORKER_HELLO_CODEC_H_

#include "absl/status/statusor.h"

#include "proto/v1/worker.pb.h"

#include "scheduler/group/worker_hello.h"

namespace quire {

absl::StatusOr<WorkerHello> HelloOf(const v1::HandshakeResponse& response);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_WORKER_HELLO_CODEC_H_
