// Converts between absl::Status and grpc::Status with google.rpc.Status details, so that any client
// library in any language can read why a call failed.
//
// On the wire, the message is printable ASCII of at most 256 bytes. The details are:
// - ErrorInfo{reason, domain "quire", metadata}, if the status has a reason (common/base/error.h);
// - BadRequest.FieldViolation, if the code is kInvalidArgument. The violation's field is the part
//   of the message before the first ": ";
// - RetryInfo, if a delay is given and the code is kUnavailable or kResourceExhausted.
// Details larger than 2 KiB lose the ErrorInfo's metadata, because gRPC replaces a status whose
// trailing metadata is too large.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_WIRE_GRPC_STATUS_H_
#define QUIRE_COMMON_WIRE_GRPC_STATUS_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <grpcpp/support/status.h>

namespace quire {

inline constexpr char kErrorDomain[] = "quire";
inline constexpr size_t kMaxStatusMessageBytes = 256;
inline constexpr size_t kMaxStatusDetailsBytes = 2048;

grpc::Status ToGrpcStatus(const absl::Status& status,
                          std::optional<absl::Duration> retry_delay = std::nullopt);

// Restores the ErrorInfo's reason and metadata for ReasonOf and MetadataOf. Drops details that
// cannot be parsed, and an ErrorInfo whose domain is not kErrorDomain.
absl::Status FromGrpcStatus(const grpc::Status& status);

// Returns the delay of the RetryInfo, or nullopt.
std::optional<absl::Duration> RetryDelayOf(const grpc::Status& status);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_GRPC_STATUS_H_
