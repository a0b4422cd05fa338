// What gRPC says of itself goes where our own log goes, which never waits. gRPC's own writing to
// standard error does: connections of strangers that make it complain would stop a server whose log
// nobody reads at the moment. Strangers can make it complain as often as they like, with bytes of
// theirs: of the errors of one place in its source one is written every ten seconds, with how many
// were left out since the one before, 200 bytes of each, without control characters. Lines below
// errors come only where somebody asked for them (GRPC_VERBOSITY), and are all written.
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

// Which errors are written.
//
// Thread safety: safe from any thread.
// Cost:          memory for each place that ever was named; the library has some hundreds.
class GrpcLogLimit {
 public:
  static constexpr int64_t kIntervalNs = 10 * kNanosPerSecond;

  // How many of this place were left out since the last one that was written; none: this one is
  // left out, too.
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
