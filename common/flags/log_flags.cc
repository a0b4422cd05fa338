#include "common/flags/log_flags.h"

#include <string>

#include "absl/flags/flag.h"

#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/flags/flag_check.h"
#include "common/flags/process.h"

ABSL_FLAG(std::string,
          log_format,
          "text",
          "Format of the log lines on standard error: text, or json (one object per line).");

namespace quire {

void ApplyLogFlagsOrExit(std::string_view prefix) {
  const std::string format = absl::GetFlag(FLAGS_log_format);
  if (format != "text" && format != "json") {
    ExitWith(FlagError("log-format", "must be text or json"), prefix, kExitUsage);
  }
  SetLogFormat(format == "json" ? LogFormat::kJson : LogFormat::kText);
}

}  // namespace quire
