#include "scheduler/rpc/wire_message.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/wire/expansion_guard.h"

namespace quire {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::UnknownFieldSet;

absl::Status Malformed() {
  return InvalidArgument("MALFORMED_PROTO",
                         "message: the bytes are not a valid request message of this method");
}

absl::Status CountUnknown(const Message& message, size_t* num_bytes);

absl::Status CountUnknownBelow(const Message& message,
                               const FieldDescriptor& field,
                               size_t* bytes) {
  const Reflection& reflection = *message.GetReflection();
  if (!field.is_repeated()) {
    return CountUnknown(reflection.GetMessage(message, &field), bytes);
  }
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    QUIRE_RETURN_IF_ERROR(CountUnknown(reflection.GetRepeatedMessage(message, &field, i), bytes));
  }
  return absl::OkStatus();
}

// Recursion is bounded by the nesting that the parser accepted.
absl::Status CountUnknown(const Message& message, size_t* num_bytes) {
  const Reflection& reflection = *message.GetReflection();
  const UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    // The parser puts a known field with a wrong wire type among the unknown fields.
    if (message.GetDescriptor()->FindFieldByNumber(unknown.field(i).number()) != nullptr) {
      return Malformed();
    }
  }
  if (!unknown.empty()) {
    std::string bytes;
    QUIRE_CHECK(unknown.SerializeToString(&bytes));
    *num_bytes += bytes.size();
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      QUIRE_RETURN_IF_ERROR(CountUnknownBelow(message, *field, num_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, Message* message) {
  QUIRE_RETURN_IF_ERROR(CheckExpansion(bytes, *message->GetDescriptor(), kMaxMessageFields));
  grpc::ByteBuffer copy(bytes);  // a second reference to the slices, since parsing releases one
  const bool parsed =
      grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(&copy, message).ok();
  if (!parsed) {
    return Malformed();
  }
  size_t num_unknown_bytes = 0;
  QUIRE_RETURN_IF_ERROR(CountUnknown(*message, &num_unknown_bytes));
  if (num_unknown_bytes > kMaxUnknownFieldBytes) {
    return InvalidArgument("UNKNOWN_FIELDS",
                           absl::StrCat("message: too many bytes in unknown fields (got ",
                                        num_unknown_bytes,
                                        ", limit ",
                                        kMaxUnknownFieldBytes,
                                        ")"));
  }
  return absl::OkStatus();
}

grpc::ByteBuffer SerializeMessage(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  const grpc::Status status =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, Message>(message, &bytes, &own_buffer);
  QUIRE_CHECK(status.ok());
  return bytes;
}

}  // namespace quire
