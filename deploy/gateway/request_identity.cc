#include "deploy/gateway/request_identity.h"

#include <cstdint>
#include <random>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "common/base/string_view.h"
#include "common/wire/api_key.h"
#include "common/wire/id_text.h"

namespace quire {
namespace {

// The scheduler takes ids of up to 128 bytes. The gateway adds up to 13 bytes: "chatcmpl-" and the
// number of a prompt ("-127").
constexpr size_t kMaxRequestIdBytes = 100;
constexpr std::string_view kBearer = "Bearer ";

}  // namespace

std::string RequestIdOf(const HttpRequest& request) {
  const std::string_view id = request.Header(kRequestIdHeader);
  if (!id.empty() && id.size() <= kMaxRequestIdBytes && IsIdText(id)) {
    return std::string(id);
  }
  thread_local std::random_device device;
  std::string random;
  for (int i = 0; i < 4; ++i) {
    absl::StrAppend(&random, absl::Hex(uint32_t{device()}, absl::kZeroPad8));
  }
  return random;
}

std::string ApiKeyOf(const HttpRequest& request) {
  const std::string_view value = request.Header(kAuthorization);
  if (!absl::StartsWithIgnoreCase(ToAbsl(value), ToAbsl(kBearer))) {
    return "";
  }
  const absl::StatusOr<std::string> key = ParseApiKey(value.substr(kBearer.size()));
  return key.ok() ? *key : "";
}

}  // namespace quire
