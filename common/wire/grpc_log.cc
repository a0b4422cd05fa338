#include "common/wire/grpc_log.h"

#include "absl/strings/str_cat.h"
#include <grpc/support/log.h>

#include "common/base/log.h"

namespace quire {
namespace {

LogLevel LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      return LogLevel::kDebug;
    case GPR_LOG_SEVERITY_INFO:
      return LogLevel::kInfo;
    case GPR_LOG_SEVERITY_ERROR:
      return LogLevel::kError;
  }
  return LogLevel::kError;
}

// Its severities are filtered before, by GRPC_VERBOSITY.
void Write(gpr_log_func_args* args) {
  Log(LevelOf(args->severity),
      "gRPC",
      {{"message", args->message}, {"at", absl::StrCat(args->file, ":", args->line)}});
}

}  // namespace

void SendGrpcLogToOurs() { gpr_set_log_function(Write); }

}  // namespace quire
