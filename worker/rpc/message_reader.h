// ReadMessage parses a peer's message. The service takes raw bytes, so that malformed bytes are
// answered with INVALID_ARGUMENT MALFORMED_PROTO and not with the library's own status.
//
// Messages with more fields than any valid message are refused before they are parsed, else a short
// message could expand into far more memory (common/wire/expansion_guard.h).
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_WORKER_RPC_MESSAGE_READER_H_
#define QUIRE_WORKER_RPC_MESSAGE_READER_H_

#include "absl/status/status.h"
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

namespace quire {

// Upper bound on the number of non-numeric fields in a message. The largest valid message has two
// for each of 4,096 new sequences: a SequenceIntroduction, and the WorkerSampling in it.
inline constexpr int kMaxFields = 2 * 4096 + 64;

// Replaces the contents of `message`. The buffer is not changed.
absl::Status ReadMessage(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);

// Returns the serialized message.
grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message);

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_MESSAGE_READER_H_
