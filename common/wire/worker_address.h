// Where a worker listens and a scheduler dials unless they are told: a Unix socket in a folder that
// nobody else may enter. Whoever reaches a worker decides what it computes.
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

// $XDG_RUNTIME_DIR. Returns nullopt if it is no absolute path, or so long that path_below, appended
// to it, would be too long for a Unix socket.
std::optional<std::string> RuntimeFolder(std::string_view path_below);

// $XDG_RUNTIME_DIR/quire/worker.sock, or /tmp/quire-UID/worker.sock. Makes the folder. Errors:
// kFailedPrecondition, reason ADDRESS, when there is something else, or another user's.
absl::StatusOr<Address> DefaultWorkerAddress();

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_WORKER_ADDRESS_H_
