// Errors about flags, worded as "--flag: rule (got 3)".
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_FLAGS_FLAG_CHECK_H_
#define QUIRE_COMMON_FLAGS_FLAG_CHECK_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace quire {

// Returns kInvalidArgument, reason FLAG. `flag` is the name without its dashes.
absl::Status FlagError(std::string_view flag, std::string_view rule);

// Returns true if a word looks like a flag ("--x", "-x"), false if it looks like a value ("x",
// "-1", "-").
bool BeginsLikeFlag(std::string_view word);

// Errors: FlagError if the value is not in [low, high].
absl::Status CheckFlagRange(std::string_view flag, int64_t value, int64_t low, int64_t high);

}  // namespace quire

#endif  // QUIRE_COMMON_FLAGS_FLAG_CHECK_H_
