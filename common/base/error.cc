#include "common/base/error.h"

#include "absl/strings/cord.h"

#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr char kReasonPayload[] = "quire.v1/reason";

}  // namespace

absl::Status Error(absl::StatusCode code, std::string_view reason, std::string_view message) {
  absl::Status status(code, ToAbsl(message));
  status.SetPayload(kReasonPayload, absl::Cord(ToAbsl(reason)));
  return status;
}

absl::Status InvalidArgument(std::string_view reason, std::string_view message) {
  return Error(absl::StatusCode::kInvalidArgument, reason, message);
}

std::string ReasonOf(const absl::Status& status) {
  auto payload = status.GetPayload(kReasonPayload);
  return payload.has_value() ? std::string(*payload) : std::string();
}

}  // namespace quire
