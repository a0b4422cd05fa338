// Parses and builds the messages of raw methods. The library's own parser would answer malformed
// bytes with UNIMPLEMENTED and no text, so a client would not learn what is wrong.
//
// Thread safety: free functions, safe from any thread.
// Errors:        kInvalidArgument: MALFORMED_PROTO (not the message, nested too deep, a known field
//                of another wire type, or more than kMaxMessageFields fields); UNKNOWN_FIELDS (more
//                than kMaxUnknownFieldBytes: newer clients stay below, wrong messages do not).
#ifndef QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_
#define QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_

#include <cstddef>

#include "absl/status/status.h"
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

namespace quire {

inline constexpr size_t kMaxUnknownFieldBytes = 1024;
// Upper bound on fields, counted as in expansion_guard.h. Many times what a request may have.
inline constexpr int kMaxMessageFields = 4096;

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// Returns the bytes of a message. REQUIRES: smaller than 2 GiB.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_
