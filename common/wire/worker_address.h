// The default address of a worker, used by worker and scheduler: a Unix socket in a folder that
// only its owner may enter, because a client of a worker decides what the worker computes.
//
// Thread safety: free functions; the environment must not change meanwhile.
#ifndef QUIRE_COMMON_WIRE_WORKER_ADDRESS_H_
#define QUIRE_COMMON_WIRE_WORKER_ADDRESS_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "common/wire/address.h"

namespace quire {

// Returns $XDG_RUNTIME_DIR. Returns nullopt if the variable is unset or no absolute path, or if the
// path with path_below appended would be too long for a Unix socket.
std::optional<std::string> RuntimeFolder(std::string_view path_below);

// Returns $XDG_RUNTIME_DIR/quire/worker.sock, or /tmp/quire-UID/worker.sock if RuntimeFolder
// returns nullopt. Makes the folder of the socket.
// Errors: kFailedPrecondition, reason ADDRESS, if another user owns the folder or may enter it, or
// if the path is no folder.
absl::StatusOr<Address> DefaultWorkerAddress();

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_WORKER_ADDRESS_H_
