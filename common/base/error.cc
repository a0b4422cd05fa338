#include "common/base/error.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr char kReasonPayload[] = "quire.v1/reason";
constexpr char kMetadataPayload[] = "quire.v1/metadata/";

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

absl::Status WithMetadata(absl::Status status, std::string_view key, std::string_view value) {
  status.SetPayload(absl::StrCat(kMetadataPayload, ToAbsl(key)), absl::Cord(ToAbsl(value)));
  return status;
}

std::string MetadataOf(const absl::Status& status, std::string_view key) {
  auto payload = status.GetPayload(absl::StrCat(kMetadataPayload, ToAbsl(key)));
  return payload.has_value() ? std::string(*payload) : std::string();
}

std::vector<std::pair<std::string, std::string>> AllMetadataOf(const absl::Status& status) {
  std::vector<std::pair<std::string, std::string>> all;
  status.ForEachPayload([&all](absl::string_view url, const absl::Cord& value) {
    if (absl::StartsWith(url, kMetadataPayload)) {
      all.emplace_back(std::string(url.substr(sizeof(kMetadataPayload) - 1)), std::string(value));
    }
  });
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace quire
