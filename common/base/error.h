// Error makes the absl::Status of a failure that a client or an operator will read: a status code,
// a stable machine-readable reason (QUEUE_FULL, TOKEN_ID_RANGE, ...) and one ASCII line
// "field: rule (got X, limit Y)". The reason is a payload of the status; common/wire/grpc_status.h
// turns the reason into google.rpc.ErrorInfo.
//
// Messages for clients never contain users' text, addresses, file paths of the host or tensor
// contents. Messages for the operator may name a file or an address that the operator gave.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_BASE_ERROR_H_
#define QUIRE_COMMON_BASE_ERROR_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace quire {

absl::Status Error(absl::StatusCode code, std::string_view reason, std::string_view message);

// Returns a kInvalidArgument Error, for a request that would fail again at every retry.
absl::Status InvalidArgument(std::string_view reason, std::string_view message);

// Returns the reason given to Error, or "" if the status has none.
std::string ReasonOf(const absl::Status& status);

// Returns `status` with one more machine-readable fact, key -> value ("last_done" -> "41"). An OK
// status is returned unchanged.
absl::Status WithMetadata(absl::Status status, std::string_view key, std::string_view value);

// Returns the value given to WithMetadata for the key, or "".
std::string MetadataOf(const absl::Status& status, std::string_view key);

// Returns all keys and values given to WithMetadata, ascending by key.
std::vector<std::pair<std::string, std::string>> AllMetadataOf(const absl::Status& status);

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_ERROR_H_
