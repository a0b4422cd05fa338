// ReadMessage parses what a peer sent. The service takes raw bytes, so that malformed ones are
// answered with INVALID_ARGUMENT MALFORMED_PROTO and not with whatever the library says.
//
// Messages with more fields than any real one has are refused before they are parsed
// (common/wire/expansion_guard.h).
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_WORKER_RPC_MESSAGE_READER_H_
#define QUIRE_WORKER_RPC_MESSAGE_READER_H_

#include "absl/status/status.h"
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

namespace quire {

// Of the largest message: an introduction with its sampling parameters for each sequence.
inline constexpr int kMaxFields = 2 * 4096 + 64;

// Clears `message` first. The buffer is only read.
absl::Status ReadMessage(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);

// The bytes of a message, to send.
grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message);

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_MESSAGE_READER_H_
