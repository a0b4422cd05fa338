// Parses and builds the messages of raw methods. The library's own parser would answer malformed
// bytes with UNIMPLEMENTED and no text, so a client would not learn what is wrong.
//
// Thread safety: free functions, safe from any thread.
// Errors:        kInvalidArgument: MALFORMED_PROTO (not the message, nested too deep, a known field
//                of another wire type, or more than kMaxMessageFields fields); UNKNOWN_FIELDS (more
//                than kMaxUnknownFieldBytes: a newer client stays below, a wrong one does not).
#ifndef QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_
#define QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_

#include <cstddef>

#include "absl/status/status.h"
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

namespace quire {

inline constexpr size_t kMaxUnknownFieldBytes = 1024;
// Fields as expansion_guard.h counts them; many times what the limits of a request allow.
inline constexpr int kMaxMessageFields = 4096;

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// The bytes of a message. REQUIRES: smaller than 2 GiB.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_
