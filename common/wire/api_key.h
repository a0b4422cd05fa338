// An API key is a client's secret. A client sends its key as metadata `authorization: Bearer KEY`;
// a server keeps only hashes of keys.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_WIRE_API_KEY_H_
#define QUIRE_COMMON_WIRE_API_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quire {

inline constexpr size_t kMaxApiKeyBytes = 256;
// Name of the metadata entry that carries the API key.
inline constexpr char kAuthorization[] = "authorization";

// SHA-256. A fast hash is enough, because a random key cannot be guessed.
using ApiKeyHash = std::array<uint8_t, 32>;

// Returns a new key: "qk-" and 256 random bits in base64url, 46 characters.
std::string MakeApiKey();

// Returns the key in a text, such as a file's contents, without the white space around the key.
// Errors: kInvalidArgument if the key is empty, too long, or not visible ASCII. The message never
// quotes the key.
absl::StatusOr<std::string> ParseApiKey(std::string_view text);

ApiKeyHash HashApiKey(std::string_view key);

// Returns a line of an API keys file (api_keys.h), without the newline.
std::string ApiKeyLine(std::string_view key, std::string_view tenant);

// Returns "Bearer " and the key: the value of the metadata entry kAuthorization.
std::string BearerOf(std::string_view key);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_API_KEY_H_
