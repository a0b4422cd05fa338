#include "common/wire/grpc_log.h"

#include <atomic>
#include <string_view>

#include "absl/strings/str_cat.h"
#include <grpc/support/log.h>

#include "common/base/clock.h"
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

// Where the library says that TLS failed.
constexpr std::string_view kTlsFile = "ssl_transport_security.cc";
constexpr int64_t kTlsIntervalNs = 10 * kNanosPerSecond;

bool IsTlsTooOften(std::string_view file) {
  static std::atomic<Instant> next_at = 0;
  if (!file.ends_with(kTlsFile)) {
    return false;
  }
  const Instant now = SteadyNow();
  Instant due = next_at.load(std::memory_order_relaxed);
  return now < due || !next_at.compare_exchange_strong(due, now + kTlsIntervalNs);
}

// Its severities are filtered before, by GRPC_VERBOSITY.
void Write(gpr_log_func_args* args) {
  if (IsTlsTooOften(args->file)) {
    return;
  }
  Log(LevelOf(args->severity),
      "gRPC",
      {{"text", args->message}, {"at", absl::StrCat(args->file, ":", args->line)}});
}

}  // namespace

void SendGrpcLogToOurs() { gpr_set_log_function(Write); }

}  // namespace quire
