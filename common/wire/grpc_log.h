// Sends gRPC's log to ours, which never waits. gRPC itself writes to standard error and may block:
// connections that make it complain would stop a server whose log has no reader.
//
// Clients can provoke any number of errors whose text they choose. So each place in gRPC's source
// logs at most one error every ten seconds, of at most 200 bytes without control characters. The
// line has the number of errors left out since the last one. Lines of lower severity appear only
// with GRPC_VERBOSITY, and then all of them.
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

  // Returns the number of this place's errors left out since the last written one, or nullopt if
  // the new error is to be left out too.
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
