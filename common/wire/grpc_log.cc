#include "common/wire/grpc_log.h"

#include "absl/strings/str_cat.h"
#include <grpc/support/log.h>

#include "common/base/log.h"
#include "common/base/printable.h"

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

constexpr size_t kMaxTextBytes = 200;

// gRPC's message begins with this text and ends with the server name that the TLS client asked for.
// Write cuts the name off: a client must not write into the log.
constexpr std::string_view kUnknownServerName = "No match found for server name";

// gRPC calls this function only for severities that pass GRPC_VERBOSITY.
void Write(gpr_log_func_args* args) {
  // Never deleted, because gRPC's threads may outlive main.
  static auto* const limit = new GrpcLogLimit;
  std::optional<int64_t> num_left_out = 0;
  if (args->severity == GPR_LOG_SEVERITY_ERROR) {
    num_left_out = limit->Admit(args->file, args->line, SteadyNow());
  }
  if (!num_left_out.has_value()) {
    return;
  }
  std::string_view message = args->message;
  if (message.starts_with(kUnknownServerName)) {
    message = kUnknownServerName;
  }
  const std::string text = Printable(message, kMaxTextBytes);
  const std::string at = absl::StrCat(args->file, ":", args->line);
  if (*num_left_out == 0) {
    Log(LevelOf(args->severity), "gRPC", {{"text", text}, {"at", at}});
  } else {
    Log(LevelOf(args->severity),
        "gRPC",
        {{"text", text}, {"at", at}, {"left_out", absl::StrCat(*num_left_out)}});
  }
}

}  // namespace

std::optional<int64_t> GrpcLogLimit::Admit(std::string_view file, int line, Instant now) {
  const MutexLock lock(mutex_);
  Place& place = places_[{std::string(file), line}];
  if (now < place.next_at) {
    ++place.num_left_out;
    return std::nullopt;
  }
  place.next_at = now + kIntervalNs;
  return std::exchange(place.num_left_out, 0);
}

void SendGrpcLogToOurs() { gpr_set_log_function(Write); }

}  // namespace quire
