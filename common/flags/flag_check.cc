#include "common/flags/flag_check.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/string_view.h"

namespace quire {

absl::Status FlagError(std::string_view flag, std::string_view rule) {
  return InvalidArgument("FLAG", absl::StrCat("--", ToAbsl(flag), ": ", ToAbsl(rule)));
}

bool BeginsLikeFlag(std::string_view word) {
  return word.size() > 1 && word[0] == '-' &&
         (word[1] == '-' || absl::ascii_isalpha(static_cast<unsigned char>(word[1])));
}

absl::Status CheckFlagRange(std::string_view flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) {
    return absl::OkStatus();
  }
  return FlagError(flag, absl::StrCat("must be in [", low, ", ", high, "] (got ", value, ")"));
}

}  // namespace quire
