#include "worker/rpc/message_reader.h"

#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/wire/expansion_guard.h"

namespace quire {
absl::Status ReadMessage(const grpc::ByteBuffer& buffer, google::protobuf::Message* message) {
  QUIRE_RETURN_IF_ERROR(CheckExpansion(buffer, *message->GetDescriptor(), kMaxFields));
  grpc::ByteBuffer bytes(buffer);  // another reference to the same memory
  grpc::ProtoBufferReader reader(&bytes);
  if (!message->ParseFromZeroCopyStream(&reader)) {
    return InvalidArgument("MALFORMED_PROTO",
                           "request: the bytes are not a valid request message of this method");
  }
  return absl::OkStatus();
}

grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message) {
  size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace quire
