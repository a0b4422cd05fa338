// Formats an error as one line for a terminal: "INVALID_ARGUMENT TOP_P_RANGE: message".
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_DEPLOY_CLI_DESCRIBE_ERROR_H_
#define QUIRE_DEPLOY_CLI_DESCRIBE_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/printable.h"

namespace quire {

inline std::string DescribeError(const absl::Status& status) {
  std::string reason = ReasonOf(status);
  return OneLine(absl::StrCat(absl::StatusCodeToString(status.code()),
                              reason.empty() ? "" : " ",
                              reason,
                              ": ",
                              status.message()));
}

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_DESCRIBE_ERROR_H_
