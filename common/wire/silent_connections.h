// SilentConnections holds connections until their clients have said a word. Those cost a file each
// and nothing of the gRPC library, and never keep anybody out: one more than kMaxConnections ends
// the one that has been silent longest. Who begins with what is no HTTP/2 and no TLS is hung up on.
//
// Clients of HTTP/2 speak first: RFC 9113, section 3.4.
//
// Thread safety: one caller at a time.
// Cost:          O(log n) for each connection that comes or goes.
#ifndef QUIRE_COMMON_WIRE_SILENT_CONNECTIONS_H_
#define QUIRE_COMMON_WIRE_SILENT_CONNECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_descriptor.h"

namespace quire {

class SilentConnections {
 public:
  static constexpr size_t kMaxConnections = 1024;
  static constexpr int64_t kMaxSilenceNs = 10 * kNanosPerSecond;

  struct Connection {
    FileDescriptor socket;
    int listener_fd = -1;  // where it came
    Instant since = 0;
  };

  SilentConnections();

  // Readable when a client has said something or left. Not open: the system gives no such file.
  const FileDescriptor& events() const { return events_; }
  bool empty() const { return connections_.empty(); }

  void Add(Connection connection);

  // Ends the one that has been silent longest. REQUIRES: !empty().
  void EndOldest();

  // Ends those that have been silent for too long.
  void EndExpired(Instant now);
  // When the next one will have been. None: there is no connection.
  std::optional<Instant> next_expiry() const;

  // Those that have begun as a client does, and are no longer here; who left has been ended.
  std::vector<Connection> TakeSpeakers();

 private:
  FileDescriptor events_;  // epoll
  uint64_t last_id_ = 0;
  std::map<uint64_t, Connection> connections_;  // by arrival
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_SILENT_CONNECTIONS_H_
