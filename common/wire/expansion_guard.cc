#include "common/wire/expansion_guard.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "common/base/error.h"

namespace quire {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormat;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// The depth limit of protobuf's parser.
constexpr int kMaxDepth = 100;

// Returns true if the parser stores the field as a number or as an array of numbers.
bool IsNumber(const FieldDescriptor* field, WireFormatLite::WireType wire_type) {
  if (field == nullptr || field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ||
      field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    return false;
  }
  return wire_type == WireFormat::WireTypeForFieldType(field->type()) ||
         (field->is_packable() && wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

class FieldCounter {
 public:
  FieldCounter(CodedInputStream& input, int max_fields) : input_(input), max_fields_(max_fields) {}

  // Reads to the end of the input. Returns false if the input is no message of the type, or if
  // has_too_many().
  bool Count(const Descriptor& type) { return CountUntilEnd(&type) && last_tag_ == 0; }

  bool has_too_many() const { return num_fields_ > max_fields_; }

 private:
  // Counts the fields of a message of the type. If type is null, counts the fields of a protobuf
  // group of unknown type, up to its end tag. last_tag_ becomes that end tag.
  bool CountUntilEnd(const Descriptor* type) {
    while (true) {
      last_tag_ = input_.ReadTag();
      if (last_tag_ == 0) {
        return input_.ConsumedEntireMessage();
      }
      if (WireFormatLite::GetTagWireType(last_tag_) == WireFormatLite::WIRETYPE_END_GROUP) {
        return true;
      }
      if (!CountField(last_tag_, type)) {
        return false;
      }
    }
  }

  bool CountField(uint32_t tag, const Descriptor* type) {
    const WireFormatLite::WireType wire_type = WireFormatLite::GetTagWireType(tag);
    const FieldDescriptor* field =
        type == nullptr ? nullptr : type->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (!IsNumber(field, wire_type) && ++num_fields_ > max_fields_) {
      return false;
    }
    if (wire_type == WireFormatLite::WIRETYPE_START_GROUP) {
      return CountGroup(tag);
    }
    if (wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED && field != nullptr &&
        field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return CountMessage(*field->message_type());
    }
    return WireFormatLite::SkipField(&input_, tag);
  }

  bool CountGroup(uint32_t start_tag) {
    if (++depth_ > kMaxDepth || !CountUntilEnd(nullptr)) {
      return false;
    }
    --depth_;
    return last_tag_ == WireFormatLite::MakeTag(WireFormatLite::GetTagFieldNumber(start_tag),
                                                WireFormatLite::WIRETYPE_END_GROUP);
  }

  bool CountMessage(const Descriptor& type) {
    uint32_t num_bytes = 0;
    if (++depth_ > kMaxDepth || !input_.ReadVarint32(&num_bytes)) {
      return false;
    }
    const CodedInputStream::Limit limit = input_.PushLimit(static_cast<int>(num_bytes));
    const bool is_whole = CountUntilEnd(&type) && last_tag_ == 0 && input_.BytesUntilLimit() == 0;
    input_.PopLimit(limit);
    --depth_;
    return is_whole;
  }

  CodedInputStream& input_;
  const int max_fields_;
  int num_fields_ = 0;
  int depth_ = 0;
  uint32_t last_tag_ = 0;
};

}  // namespace

absl::Status CheckExpansion(const grpc::ByteBuffer& bytes, const Descriptor& type, int max_fields) {
  grpc::ByteBuffer copy(bytes);  // another reference to the same memory
  grpc::ProtoBufferReader reader(&copy);
  CodedInputStream input(&reader);
  FieldCounter counter(input, max_fields);
  if (counter.Count(type)) {
    return absl::OkStatus();
  }
  if (counter.has_too_many()) {
    return InvalidArgument("MALFORMED_PROTO",
                           absl::StrCat("message: too many fields (limit ", max_fields, ")"));
  }
  return InvalidArgument("MALFORMED_PROTO",
                         "message: the bytes are not a valid request message of this method");
}

}  // namespace quire
