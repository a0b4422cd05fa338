// Parses and builds the messages of raw methods, whose bytes gRPC passes on unparsed. gRPC's own
// parser would answer malformed bytes with UNIMPLEMENTED and no text, which tells a client nothing.
//
// Thread safety: free functions, safe from any thread.
// Errors:        kInvalidArgument MALFORMED_PROTO: the bytes are not the message, are nested too
//                deep, hold a known field with another wire type, or hold more than
//                kMaxMessageFields fields. kInvalidArgument UNKNOWN_FIELDS: unknown fields take
//                more than kMaxUnknownFieldBytes. The new fields of a newer client take less; the
//                unknown fields of a message of a wrong type usually take more.
#ifndef QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_
#define QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_

#include <cstddef>

#include "absl/status/status.h"
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

namespace quire {

inline constexpr size_t kMaxUnknownFieldBytes = 1024;
// Upper bound on the fields of a message, counted as in expansion_guard.h. Many times higher than
// any valid request needs.
inline constexpr int kMaxMessageFields = 4096;

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// Returns the bytes of a message. REQUIRES: smaller than 2 GiB.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_WIRE_MESSAGE_H_
