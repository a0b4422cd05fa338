// The default address of a worker, used by worker and scheduler. It is a Unix socket in a folder
// that only the owner may enter, because any client of a worker decides what the worker computes.
//
// Thread safety: any thread, while no thread changes the environment.
#ifndef QUIRE_COMMON_WIRE_WORKER_ADDRESS_H_
#define QUIRE_COMMON_WIRE_WORKER_ADDRESS_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "common/wire/address.h"

namespace quire {

// Returns $XDG_RUNTIME_DIR. Returns nullopt if the variable is unset or not an absolute path. Also
// returns nullopt if the variable's path with path_below appended is too long for a Unix socket.
std::optional<std::string> RuntimeFolder(std::string_view path_below);

// Returns $XDG_RUNTIME_DIR/quire/worker.sock, or /tmp/quire-UID/worker.sock if RuntimeFolder
// returns nullopt. Makes the folder of the socket.
// Errors: kFailedPrecondition, reason ADDRESS, if another user owns the folder or may enter it, or
// if the path is no folder.
absl::StatusOr<Address> DefaultWorkerAddress();

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_WORKER_ADDRESS_H_
