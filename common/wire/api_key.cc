#include "common/wire/api_key.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "common/base/random_bytes.h"
#include "common/base/string_view.h"
#include "common/wire/sha256.h"

namespace quire {
namespace {

constexpr size_t kRandomBytes = 32;

}  // namespace

std::string MakeApiKey() {
  return absl::StrCat("qk-", absl::WebSafeBase64Escape(RandomBytes(kRandomBytes)));
}

absl::StatusOr<std::string> ParseApiKey(std::string_view text) {
  const absl::string_view key = absl::StripAsciiWhitespace(ToAbsl(text));
  if (key.empty() || key.size() > kMaxApiKeyBytes ||
      !std::all_of(key.begin(), key.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an API key has 1 to ", kMaxApiKeyBytes, " characters of visible ASCII"));
  }
  return std::string(key);
}

ApiKeyHash HashApiKey(std::string_view key) { return Sha256(key); }

std::string ApiKeyLine(std::string_view key, std::string_view tenant) {
  const ApiKeyHash hash = HashApiKey(key);
  return absl::StrCat(
      absl::BytesToHexString({reinterpret_cast<const char*>(hash.data()), hash.size()}),
      " ",
      ToAbsl(tenant));
}

std::string BearerOf(std::string_view key) { return absl::StrCat("Bearer ", ToAbsl(key)); }

}  // namespace quire
