#include "common/wire/grpc_status.h"

#include <string>

#include <gtest/gtest.h>

#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"

#include "common/base/error.h"

namespace quire {
namespace {

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

// A length-delimited protobuf field, written by hand.
std::string Field(int number, const std::string& bytes) {
  EXPECT_LT(bytes.size(), 128U);
  return std::string(1, static_cast<char>(number << 3 | 2)) +
         std::string(1, static_cast<char>(bytes.size())) + bytes;
}

TEST(GrpcStatusTest, DetailsAreTheBytesOfGoogleRpcStatus) {
  absl::Status status = Error(absl::StatusCode::kOutOfRange, "STEP_GAP", "step_id: gap");
  status = WithMetadata(status, "last_done", "41");

  grpc::Status sent = ToGrpcStatus(status);

  std::string info =
      Field(1, "STEP_GAP") + Field(2, "quire") + Field(3, Field(1, "last_done") + Field(2, "41"));
  std::string any = Field(1, "type.googleapis.com/google.rpc.ErrorInfo") + Field(2, info);
  std::string expected = "\x08\x0b" + Field(2, "step_id: gap") + Field(3, any);
  EXPECT_EQ(sent.error_details(), expected);
  EXPECT_EQ(sent.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(sent.error_message(), "step_id: gap");
}

TEST(GrpcStatusTest, InvalidArgumentNamesItsField) {
  grpc::Status sent =
      ToGrpcStatus(InvalidArgument("TOP_P_RANGE", "sampling.top_p: must be in (0, 1] (got 2)"));

  google::rpc::Status details = DetailsOf(sent);
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(details.details(1).UnpackTo(&bad_request));
  ASSERT_EQ(bad_request.field_violations_size(), 1);
  EXPECT_EQ(bad_request.field_violations(0).field(), "sampling.top_p");
  EXPECT_EQ(bad_request.field_violations(0).description(), "must be in (0, 1] (got 2)");
}

TEST(GrpcStatusTest, OnlyRetryableCodesCarryADelay) {
  for (int code = 1; code <= 16; ++code) {
    absl::Status status = Error(static_cast<absl::StatusCode>(code), "R", "field: rule");
    bool is_retryable = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);

    grpc::Status with = ToGrpcStatus(status, absl::Milliseconds(1250));
    grpc::Status without = ToGrpcStatus(status);

    EXPECT_EQ(RetryDelayOf(with).has_value(), is_retryable) << code;
    EXPECT_FALSE(RetryDelayOf(without).has_value()) << code;
    if (is_retryable) {
      EXPECT_EQ(*RetryDelayOf(with), absl::Milliseconds(1250));
    }
  }
}

TEST(GrpcStatusTest, EveryCodeReasonAndFactComesBack) {
  for (int code = 1; code <= 16; ++code) {
    absl::Status status = Error(static_cast<absl::StatusCode>(code), "QUEUE_FULL", "queue: full");
    status = WithMetadata(WithMetadata(status, "limit", "8"), "got", "9");

    absl::Status back = FromGrpcStatus(ToGrpcStatus(status));

    EXPECT_EQ(back, status) << code;
    EXPECT_EQ(ReasonOf(back), "QUEUE_FULL");
    EXPECT_EQ(MetadataOf(back, "limit"), "8");
    EXPECT_EQ(MetadataOf(back, "got"), "9");
  }
}

TEST(GrpcStatusTest, OkIsOkBothWays) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(GrpcStatusTest, MessagesAreShortPrintableAscii) {
  grpc::Status sent =
      ToGrpcStatus(InvalidArgument("X", "field: \xC3\xA9\n\x01" + std::string(1000, 'x')));

  EXPECT_EQ(sent.error_message().size(), 256U);
  EXPECT_EQ(sent.error_message().substr(0, 12), "field: ????x");
}

TEST(GrpcStatusTest, TooManyFactsAreLeftOutAndTheReasonStays) {
  absl::Status status = Error(absl::StatusCode::kInternal, "PROTOCOL_VIOLATION", "plan: wrong");
  for (int i = 0; i < 40; ++i) {
    status = WithMetadata(status, "key" + std::to_string(i), std::string(100, 'v'));
  }

  grpc::Status sent = ToGrpcStatus(status);

  EXPECT_LE(sent.error_details().size(), 2048U);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(sent)), "PROTOCOL_VIOLATION");
  EXPECT_TRUE(AllMetadataOf(FromGrpcStatus(sent)).empty());
}

TEST(GrpcStatusTest, AStatusWithoutReasonHasNoDetails) {
  grpc::Status sent = ToGrpcStatus(absl::UnavailableError("gone"));

  EXPECT_TRUE(sent.error_details().empty());
  EXPECT_EQ(ReasonOf(FromGrpcStatus(sent)), "");
}

TEST(GrpcStatusTest, ForeignAndBrokenDetailsAreIgnored) {
  google::rpc::Status foreign;
  google::rpc::ErrorInfo info;
  info.set_reason("SERVICE_DISABLED");
  info.set_domain("googleapis.com");
  foreign.add_details()->PackFrom(info);
  for (const std::string& details : {foreign.SerializeAsString(), std::string("\xFF\xFF junk")}) {
    absl::Status status =
        FromGrpcStatus(grpc::Status(grpc::StatusCode::UNAVAILABLE, "no", details));

    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "no");
    EXPECT_EQ(ReasonOf(status), "");
  }
}

}  // namespace
}  // namespace quire
