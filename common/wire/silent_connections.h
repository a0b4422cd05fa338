// SilentConnections holds connections whose clients have sent no byte yet. A silent connection
// costs one file descriptor and nothing in the gRPC library. Silent connections keep no other
// client out: beyond kMaxConnections, a new silent connection ends the oldest one. A client whose
// first bytes are neither HTTP/2 nor TLS is disconnected.
//
// gRPC need not see a connection before the client's first bytes, because an HTTP/2 client sends
// first (RFC 9113, section 3.4).
//
// Thread safety: one caller at a time.
// Cost:          O(log n) for each connection that is added or removed.
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
    int listener_fd = -1;  // the listening socket that accepted this connection
    Instant since = 0;     // time of accept
  };

  SilentConnections();

  // The epoll descriptor, readable when a client has sent bytes or left. Not open if the system
  // could not make an epoll instance.
  const FileDescriptor& events() const { return events_; }
  bool empty() const { return connections_.empty(); }

  void Add(Connection connection);

  // Ends the connection that has been silent longest. REQUIRES: !empty().
  void EndOldest();

  // Ends connections that have been silent for kMaxSilenceNs.
  void EndExpired(Instant now);
  // Returns the time at which the next connection expires, or nullopt if there is no connection.
  std::optional<Instant> next_expiry() const;

  // Removes and returns connections whose clients began HTTP/2 or TLS. Ends connections
  // whose clients left or sent anything else.
  std::vector<Connection> TakeSpeakers();

 private:
  FileDescriptor events_;  // an epoll descriptor
  uint64_t last_id_ = 0;
  std::map<uint64_t, Connection> connections_;  // by id; ids ascend in order of arrival
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_SILENT_CONNECTIONS_H_
