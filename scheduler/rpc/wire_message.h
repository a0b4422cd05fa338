// Messages of the public methods, parsed and built by us. The library's own parser answers bytes
// that are no message with UNIMPLEMENTED and an empty text; a client deserves to hear what is
// wrong.
//
// Thread safety: free functions, safe from any thread.
// Errors:        kInvalidArgument: MALFORMED_PROTO (not the message, nested too deep, a known field
//                of another wire type, or more than kMaxMessageFields fields); UNKNOWN_FIELDS (more
//                than kMaxUnknownFieldBytes of them: a newer client is served, a wrong one is
//                told).
#ifndef QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_
#define QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_

#include <cstddef>

#include "absl/status/status.h"
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

namespace quire {

inline constexpr size_t kMaxUnknownFieldBytes = 1024;
// As expansion_guard.h counts them; many times what the limits of a request allow.
inline constexpr int kMaxMessageFields = 4096;

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// The bytes of a message. REQUIRES: smaller than 2 GiB.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_
