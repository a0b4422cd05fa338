#include "common/wire/grpc_status.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"

#include "common/base/error.h"
#include "common/base/printable.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

// Metadata values are numbers and short names; longer values are cut.
constexpr size_t kMaxMetadataBytes = 128;

bool IsRetryable(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted;
}

void AddErrorInfo(const absl::Status& status, bool with_metadata, google::rpc::Status* details) {
  std::string reason = ReasonOf(status);
  if (reason.empty()) {
    return;
  }
  google::rpc::ErrorInfo info;
  info.set_reason(Printable(reason, kMaxMetadataBytes));
  info.set_domain(kErrorDomain);
  if (with_metadata) {
    for (const auto& [key, value] : AllMetadataOf(status)) {
      (*info.mutable_metadata())[Printable(key, kMaxMetadataBytes)] =
          Printable(value, kMaxMetadataBytes);
    }
  }
  details->add_details()->PackFrom(info);
}

void AddFieldViolation(const std::string& message, google::rpc::Status* details) {
  size_t colon = message.find(": ");
  if (colon == std::string::npos) {
    return;
  }
  google::rpc::BadRequest bad_request;
  auto* violation = bad_request.add_field_violations();
  violation->set_field(message.substr(0, colon));
  violation->set_description(message.substr(colon + 2));
  details->add_details()->PackFrom(bad_request);
}

void AddRetryInfo(absl::Duration delay, google::rpc::Status* details) {
  google::rpc::RetryInfo retry;
  int64_t nanos = std::max<int64_t>(0, absl::ToInt64Nanoseconds(delay));
  retry.mutable_retry_delay()->set_seconds(nanos / 1'000'000'000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  details->add_details()->PackFrom(retry);
}

google::rpc::Status DetailsOf(const absl::Status& status,
                              const std::string& message,
                              std::optional<absl::Duration> retry_delay,
                              bool with_metadata) {
  google::rpc::Status details;
  details.set_code(static_cast<int32_t>(status.code()));
  details.set_message(message);
  AddErrorInfo(status, with_metadata, &details);
  if (absl::IsInvalidArgument(status)) {
    AddFieldViolation(message, &details);
  }
  if (retry_delay.has_value() && IsRetryable(status.code())) {
    AddRetryInfo(*retry_delay, &details);
  }
  return details;
}

// Returns the first detail of this type that can be parsed, or nullopt.
template <typename Detail>
std::optional<Detail> FindDetail(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) {
    return std::nullopt;
  }
  for (const google::protobuf::Any& any : details.details()) {
    Detail detail;
    if (any.Is<Detail>() && any.UnpackTo(&detail)) {
      return detail;
    }
  }
  return std::nullopt;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status, std::optional<absl::Duration> retry_delay) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  std::string message = Printable(ToStd(status.message()), kMaxStatusMessageBytes);
  google::rpc::Status details = DetailsOf(status, message, retry_delay, true);
  if (details.ByteSizeLong() > kMaxStatusDetailsBytes) {
    details = DetailsOf(status, message, retry_delay, false);
  }
  // The codes of abseil and gRPC are the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      message,
                      details.details_size() > 0 ? details.SerializeAsString() : "");
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  auto code = static_cast<absl::StatusCode>(status.error_code());
  auto info = FindDetail<google::rpc::ErrorInfo>(status);
  if (!info.has_value() || info->domain() != kErrorDomain) {
    return absl::Status(code, status.error_message());
  }
  absl::Status result = Error(code, info->reason(), status.error_message());
  for (const auto& [key, value] : info->metadata()) {
    result = WithMetadata(std::move(result), key, value);
  }
  return result;
}

std::optional<absl::Duration> RetryDelayOf(const grpc::Status& status) {
  auto retry = FindDetail<google::rpc::RetryInfo>(status);
  if (!retry.has_value()) {
    return std::nullopt;
  }
  return absl::Seconds(retry->retry_delay().seconds()) +
         absl::Nanoseconds(retry->retry_delay().nanos());
}

}  // namespace quire
