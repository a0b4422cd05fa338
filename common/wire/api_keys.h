// ApiKeys are the keys that a port takes, in a file that may be replaced while the process runs
// (reloaded.h). Replace it at once, by a rename: half of a file may be a file with fewer keys.
//
// One key a line: the SHA-256 of the key in hex, white space, and whose key it is ("tenant", by the
// rule of id_text.h). Several keys may be one tenant's. Empty lines, and those that begin with '#',
// say nothing.
//
// Thread safety: any thread.
// Errors:        kInvalidArgument, reason API_KEYS_FILE, message "API keys: file: line 3: rule". Of
//                a file no content is ever told.
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

// Each call is compared with all of them: 1,024 take some 20 us.
inline constexpr size_t kMaxApiKeys = 1024;
inline constexpr int64_t kMaxApiKeysFileBytes = int64_t{512} << 10;

struct KnownApiKey {
  ApiKeyHash hash = {};
  std::string tenant;

  friend bool operator==(const KnownApiKey&, const KnownApiKey&) = default;
};

// The text of a file; the message begins with "line 3: ", or "holds" where it holds no key.
absl::StatusOr<std::vector<KnownApiKey>> ParseApiKeys(std::string_view text);

class ApiKeys {
 public:
  // A file without a key is none.
  static absl::StatusOr<std::shared_ptr<ApiKeys>> Open(const std::string& path);

  // Of the key that a call brings. authorization: the one value of that name in its metadata; empty
  // when there is none, or several.
  // Errors: kUnauthenticated API_KEY. How long it takes tells nothing of the keys that there are,
  // but their number.
  absl::StatusOr<std::string> TenantOf(std::string_view authorization);

 private:
  ApiKeys(const std::string& path, std::vector<KnownApiKey> keys);

  Reloaded<std::vector<KnownApiKey>> keys_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_API_KEYS_H_
