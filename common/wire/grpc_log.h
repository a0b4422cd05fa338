// Sends gRPC's log to ours, which never waits. gRPC itself writes to standard error and may block:
// connections that make it complain would stop a server whose log has no reader.
//
// Clients can provoke any number of errors, with text of theirs. So each place in gRPC's source
// logs one error every ten seconds, with the number left out since the last: at most 200 bytes,
// without control characters. Lines below errors need GRPC_VERBOSITY and are all written.
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
// Cost:          memory for each place that ever logged; the library has some hundreds.
class GrpcLogLimit {
 public:
  static constexpr int64_t kIntervalNs = 10 * kNanosPerSecond;

  // Returns the number of this place's errors left out since the last one written, or nullopt if
  // this one is left out too.
  std::optional<int64_t> Admit(std::string_view file, int line, Instant now);

 private:
  struct Place {
    Instant next_at = 0;
    int64_t num_left_out = 0;
  };

  Mutex mutex_;
  std::map<std::pair<std::string, int>, Place> places_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_GRPC_LOG_H_
