// An API key is a client's secret. It is sent as metadata `authorization: Bearer KEY`; a server
// keeps its hash alone.
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
// Of the metadata of a call.
inline constexpr char kAuthorization[] = "authorization";

// SHA-256. A fast hash is enough for a key that nobody can guess.
using ApiKeyHash = std::array<uint8_t, 32>;

// A new one: "qk-" and 256 random bits in base64url, 46 characters.
std::string MakeApiKey();

// The key in a text, for example of a file: what is left without white space around it.
// Errors: kInvalidArgument when that is empty, too long, or not visible ASCII. It is not told.
absl::StatusOr<std::string> ParseApiKey(std::string_view text);

ApiKeyHash HashApiKey(std::string_view key);

// As api_keys.h reads it, without the end of the line.
std::string ApiKeyLine(std::string_view key, std::string_view tenant);

// The value of kAuthorization.
std::string BearerOf(std::string_view key);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_API_KEY_H_
