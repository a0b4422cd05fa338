// ApiKeys holds the keys that a port accepts. The keys come from a file that may be replaced while
// the process runs (reloaded.h). Replace the file atomically, by a rename, because a half-written
// file can be valid and lack keys.
//
// Each line has one key: the SHA-256 of the key in hex, white space, and the tenant's name (by the
// rule of id_text.h). A tenant may have several keys. Lines that are empty or begin with '#' are
// skipped.
//
// Thread safety: any thread.
// Errors:        kInvalidArgument, reason API_KEYS_FILE, message "API keys: file: line 3: rule";
//                never quotes the file's contents.
#ifndef QUIRE_COMMON_WIRE_API_KEYS_H_
#define QUIRE_COMMON_WIRE_API_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/wire/api_key.h"
#include "common/wire/reloaded.h"

namespace quire {

// Upper bound on the keys of a file. TenantOf compares a call's key with all keys; 1,024
// comparisons take some 20 us.
inline constexpr size_t kMaxApiKeys = 1024;
inline constexpr int64_t kMaxApiKeysFileBytes = int64_t{512} << 10;

struct KnownApiKey {
  ApiKeyHash hash = {};
  std::string tenant;

  friend bool operator==(const KnownApiKey&, const KnownApiKey&) = default;
};

// Parses the text of a file. The error message begins with the line number ("line 3: "), or is
// "holds no key".
absl::StatusOr<std::vector<KnownApiKey>> ParseApiKeys(std::string_view text);

class ApiKeys {
 public:
  // Refuses a file without a key.
  static absl::StatusOr<std::shared_ptr<ApiKeys>> Open(const std::string& path);

  // Returns the tenant of a call's key. authorization: the value of the metadata `authorization`;
  // empty if the call has none, or several.
  // Errors: kUnauthenticated API_KEY. The function's duration reveals only the number of keys.
  absl::StatusOr<std::string> TenantOf(std::string_view authorization);

 private:
  ApiKeys(const std::string& path, std::vector<KnownApiKey> keys);

  Reloaded<std::vector<KnownApiKey>> keys_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_API_KEYS_H_
