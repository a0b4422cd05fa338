#include "scheduler/rpc/wire_message.h"

#include <string>

#include "gtest/gtest.h"

#include "proto/v1/generation.pb.h"

#include "common/base/error.h"

namespace quire {
namespace {

grpc::ByteBuffer Bytes(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ReasonFor(const std::string& bytes) {
  v1::GenerateRequest message;
  return ReasonOf(ParseMessage(Bytes(bytes), &message));
}

constexpr int kUnknown = 5000;

// A length-delimited field.
std::string Field(int number, const std::string& content) {
  std::string bytes;
  for (size_t varint : {static_cast<size_t>(number) << 3 | 2, content.size()}) {
    for (; varint > 0x7F; varint >>= 7) {
      bytes.push_back(static_cast<char>((varint & 0x7F) | 0x80));
    }
    bytes.push_back(static_cast<char>(varint));
  }
  return bytes + content;
}

TEST(WireMessageTest, WhatIsBuiltIsParsedBack) {
  v1::GenerateRequest message;
  message.set_text("a prompt");
  message.mutable_sampling()->set_seed(7);

  v1::GenerateRequest parsed;
  const absl::Status status = ParseMessage(SerializeMessage(message), &parsed);

  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(parsed.SerializeAsString(), message.SerializeAsString());
}

TEST(WireMessageTest, NoBytesAreAnEmptyMessage) {
  v1::GetServerInfoRequest message;

  EXPECT_TRUE(ParseMessage(Bytes(""), &message).ok());
}

TEST(WireMessageTest, BytesThatAreNoMessageAreMalformed) {
  EXPECT_EQ(ReasonFor("\xFF\xFF\xFF\xFF"), "MALFORMED_PROTO");
  EXPECT_EQ(ReasonFor("\x1A\x7F"
                      "abc"),
            "MALFORMED_PROTO")
      << "truncated field";
  EXPECT_EQ(ReasonFor(Field(1, "\x80")), "MALFORMED_PROTO") << "string that is not UTF-8";
}

TEST(WireMessageTest, NestingDeeperThanTheLimitIsMalformed) {
  std::string bytes;
  for (int depth = 0; depth < 200; ++depth) {
    bytes += '\x7B';  // start of group 15
  }
  for (int depth = 0; depth < 200; ++depth) {
    bytes += '\x7C';
  }

  EXPECT_EQ(ReasonFor(bytes), "MALFORMED_PROTO");
}

TEST(WireMessageTest, AKnownFieldOfAnotherWireTypeIsMalformedAtAnyDepth) {
  EXPECT_EQ(ReasonFor(std::string("\x18\x05", 2)), "MALFORMED_PROTO") << "text as a number";
  EXPECT_EQ(ReasonFor(Field(5, std::string("\x08\x01", 2))), "MALFORMED_PROTO")
      << "sampling.temperature as a varint";
}

TEST(WireMessageTest, AFewUnknownBytesAreIgnoredAndManyAreNot) {
  EXPECT_EQ(ReasonFor(Field(kUnknown, std::string(1000, 'x'))), "");
  EXPECT_EQ(ReasonFor(Field(kUnknown, std::string(1100, 'x'))), "UNKNOWN_FIELDS");
  EXPECT_EQ(ReasonFor(Field(5, Field(kUnknown, std::string(1100, 'x')))), "UNKNOWN_FIELDS")
      << "nested";
}

TEST(WireMessageTest, WhatWouldTakeManyTimesItsSizeIsRefusedUnparsed) {
  constexpr int kNumFields = 2 << 20;  // two bytes each: all that a client may send
  std::string biases;
  std::string stops;
  std::string unknown;
  for (int i = 0; i < kNumFields; ++i) {
    biases += Field(8, "");
    stops += Field(3, "");
    unknown += Field(15, "");
  }
  const std::string group_in_a_message = '\x7B' + unknown + '\x7C';
  for (const std::string& bytes :
       {Field(5, biases), Field(6, stops), Field(5, unknown), Field(5, group_in_a_message)}) {
    v1::GenerateRequest message;

    EXPECT_EQ(ReasonOf(ParseMessage(Bytes(bytes), &message)), "MALFORMED_PROTO");
    EXPECT_LT(message.SpaceUsedLong(), 10'000U);
  }
}

TEST(WireMessageTest, ManyNumbersAreReadPackedAndOneByOne) {
  v1::TokenizeResponse packed;
  std::string one_by_one;
  for (int32_t i = 0; i < 100'000; ++i) {
    packed.add_token_ids(i % 100);
    one_by_one += {'\x08', static_cast<char>(i % 100)};
  }
  v1::TokenizeResponse from_packed;
  v1::TokenizeResponse from_single;

  EXPECT_TRUE(ParseMessage(SerializeMessage(packed), &from_packed).ok());
  EXPECT_TRUE(ParseMessage(Bytes(one_by_one), &from_single).ok());

  EXPECT_EQ(from_packed.SerializeAsString(), packed.SerializeAsString());
  EXPECT_EQ(from_single.SerializeAsString(), packed.SerializeAsString());
}

}  // namespace
}  // namespace quire
