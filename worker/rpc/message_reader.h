// ReadMessage parses what a peer sent. The service takes raw bytes, so that malformed ones are
// answered with INVALID_ARGUMENT MALFORMED_PROTO and not with whatever the library says.
//
// A message of two bytes per empty submessage would take a hundred times its size when parsed, so
// messages with more top-level fields than any real one has are refused before they are parsed.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_WORKER_RPC_MESSAGE_READER_H_
#define QUIRE_WORKER_RPC_MESSAGE_READER_H_

#include "absl/status/status.h"
#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

namespace quire {

// Columns and single fields of the largest message, and an introduction for each sequence.
inline constexpr int kMaxTopLevelFields = 4096 + 64;

// Clears `message` first. The buffer is only read.
absl::Status ReadMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message);

// The bytes of a message, to send.
grpc::ByteBuffer WriteMessage(const google::protobuf::MessageLite& message);

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_MESSAGE_READER_H_
