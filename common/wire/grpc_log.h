// Sends gRPC's log lines to our log (common/base/log.h), which never waits. gRPC itself would write
// to standard error and might block there. A server whose standard error has no reader would then
// hang at the first connection errors.
//
// Clients can provoke any number of errors, and choose a part of their text. So each place (file
// and line) in gRPC's source logs at most one error every ten seconds. The error's text is cut to
// 200 bytes and has no control characters. The log line says how many errors of the same place were
// left out since the place's previous line. Messages of lower severity appear only if the variable
// GRPC_VERBOSITY is set, and are not limited.
#ifndef QUIRE_COMMON_WIRE_GRPC_LOG_H_
#define QUIRE_COMMON_WIRE_GRPC_LOG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace quire {

// Call from main, before gRPC is used.
void SendGrpcLogToOurs();

// GrpcLogLimit decides which errors are written.
//
// Thread safety: safe from any thread.
// Cost:          memory for each place (file, line) that ever logged; gRPC has some hundreds.
class GrpcLogLimit {
 public:
  static constexpr int64_t kIntervalNs = 10 * kNanosPerSecond;

  // Returns nullopt if the error must be left out. Otherwise returns how many errors of the same
  // place (file, line) were left out since the last error that was written.
  std::optional<int64_t> Admit(std::string_view file, int line, Instant now);

 private:
  struct Place {
    Instant next_at = 0;  // errors before this time are left out
    int64_t num_left_out = 0;
  };

  Mutex mutex_;
  std::map<std::pair<std::string, int>, Place> places_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_GRPC_LOG_H_
