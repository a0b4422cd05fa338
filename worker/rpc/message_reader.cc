#include "worker/rpc/message_reader.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include "common/base/error.h"

namespace quire {
namespace {

using google::protobuf::internal::WireFormatLite;

// The number of top-level fields, or more than kMaxTopLevelFields when the bytes are no message.
int CountFields(grpc::ByteBuffer* buffer) {
  grpc::ProtoBufferReader reader(buffer);
  google::protobuf::io::CodedInputStream input(&reader);
  int count = 0;
  while (count <= kMaxTopLevelFields) {
    uint32_t tag = input.ReadTag();
    if (tag == 0) {
      return input.ConsumedEntireMessage() ? count : kMaxTopLevelFields + 1;
    }
    ++count;
    if (!WireFormatLite::SkipField(&input, tag)) {
      return kMaxTopLevelFields + 1;
    }
  }
  return count;
}

}  // namespace

absl::Status ReadMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message) {
  grpc::ByteBuffer bytes(buffer);  // another reference to the same memory
  if (CountFields(&bytes) <= kMaxTopLevelFields) {
    grpc::ProtoBufferReader reader(&bytes);
    if (message->ParseFromZeroCopyStream(&reader)) {
      return absl::OkStatus();
    }
  }
  return InvalidArgument("MALFORMED_PROTO", "request: the bytes are not the message");
}

grpc::ByteBuffer WriteMessage(const google::protobuf::MessageLite& message) {
  size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace quire
