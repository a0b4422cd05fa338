#include "common/wire/api_keys.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "common/base/error.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/wire/id_text.h"

#include <openssl/crypto.h>

namespace quire {
namespace {

absl::Status FileFault(absl::string_view message) {
  return InvalidArgument("API_KEYS_FILE", ToStd(message));
}

absl::Status LineFault(size_t line, absl::string_view rule) {
  return FileFault(absl::StrCat("line ", line, ": ", rule));
}

// Parses a line that is neither empty nor a comment.
absl::StatusOr<KnownApiKey> ParseLine(absl::string_view text, size_t line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  KnownApiKey key;
  if (words.size() != 2) {
    return LineFault(line, "must be the SHA-256 of a key and the name of a tenant");
  }
  if (words[0].size() != 2 * key.hash.size() ||
      !std::all_of(words[0].begin(), words[0].end(), absl::ascii_isxdigit)) {
    return LineFault(line, "the SHA-256 of a key must be 64 hexadecimal digits");
  }
  if (words[1].size() > kMaxTenantBytes || !IsIdText(ToStd(words[1]))) {
    return LineFault(
        line,
        absl::StrCat(
            "the name of a tenant must have only letters, digits, '.', '_' and '-', at most ",
            kMaxTenantBytes));
  }
  const std::string bytes = absl::HexStringToBytes(words[0]);
  std::copy(bytes.begin(), bytes.end(), key.hash.begin());
  key.tenant = std::string(words[1]);
  return key;
}

absl::StatusOr<std::vector<KnownApiKey>> ReadApiKeys(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxApiKeysFileBytes);
  if (!text.ok()) {
    return FileFault(absl::StrCat("API keys: ", text.status().message()));
  }
  absl::StatusOr<std::vector<KnownApiKey>> keys = ParseApiKeys(*text);
  return keys.ok() ? std::move(keys)
                   : FileFault(absl::StrCat("API keys: ", path, ": ", keys.status().message()));
}

}  // namespace

absl::StatusOr<std::vector<KnownApiKey>> ParseApiKeys(std::string_view text) {
  std::vector<KnownApiKey> keys;
  std::map<ApiKeyHash, size_t> lines;
  size_t line = 0;
  for (absl::string_view piece : absl::StrSplit(ToAbsl(text), '\n')) {
    ++line;
    piece = absl::StripAsciiWhitespace(piece);
    if (piece.empty() || piece.front() == '#') {
      continue;
    }
    if (keys.size() == kMaxApiKeys) {
      return LineFault(line, absl::StrCat("too many keys (limit ", kMaxApiKeys, ")"));
    }
    QUIRE_ASSIGN_OR_RETURN(KnownApiKey key, ParseLine(piece, line));
    if (const auto [same, is_new] = lines.try_emplace(key.hash, line); !is_new) {
      return LineFault(line, absl::StrCat("repeats the key of line ", same->second));
    }
    keys.push_back(std::move(key));
  }
  return keys.empty() ? FileFault("holds no key") : absl::StatusOr<decltype(keys)>(std::move(keys));
}

absl::StatusOr<std::shared_ptr<ApiKeys>> ApiKeys::Open(const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<KnownApiKey> keys, ReadApiKeys(path));
  return std::shared_ptr<ApiKeys>(new ApiKeys(path, std::move(keys)));
}

ApiKeys::ApiKeys(const std::string& path, std::vector<KnownApiKey> keys)
    : keys_(
          "API keys", path, [path] { return ReadApiKeys(path); }, std::move(keys)) {}

absl::StatusOr<std::string> ApiKeys::TenantOf(std::string_view authorization) {
  constexpr absl::string_view kScheme = "Bearer ";
  absl::string_view key = ToAbsl(authorization);
  const bool is_bearer = absl::StartsWithIgnoreCase(key, kScheme);
  key.remove_prefix(is_bearer ? kScheme.size() : 0);
  const auto keys = keys_.Get();
  const KnownApiKey* found = nullptr;
  if (is_bearer && key.size() <= kMaxApiKeyBytes) {
    const ApiKeyHash hash = HashApiKey(ToStd(key));
    // The loop has no early exit, because its duration must not depend on the key.
    for (const KnownApiKey& known : *keys) {
      found = ::CRYPTO_memcmp(known.hash.data(), hash.data(), hash.size()) == 0 ? &known : found;
    }
  }
  if (found == nullptr) {
    return Error(absl::StatusCode::kUnauthenticated,
                 "API_KEY",
                 "authorization: a valid API key is needed (Bearer KEY)");
  }
  return found->tenant;
}

}  // namespace quire
