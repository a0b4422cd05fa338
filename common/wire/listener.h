// Listener accepts connections for a gRPC server, in place of the library's own ports. In gRPC
// 1.51.1 the library's ports accept without limit, and stop for good when the process has no file
// descriptor left (CVE-2023-4785).
//
// A connection goes to the library after its client's first bytes. Until then the connection is
// called silent (silent_connections.h). While too many files are open, a new connection replaces
// the oldest silent connection. If no connection is silent, the new connection is closed at once,
// so that the rest of the process always has some files left. The limit counts open files and not
// connections, because the library does not report when a connection ends. The kernel gives the
// lowest free descriptor, so descriptor N means at least N open files.
//
// A client of a Unix socket may do everything that the server offers. So connections of users other
// than this process's user and root are closed, whatever the file's permissions are. Refusals for
// too many files, refusals of users, and failures of accept are each logged at most every ten
// seconds. A failed accept is retried after 100 ms.
//
// Thread safety: one caller at a time. The listener's own thread accepts.
// Errors:        kUnavailable, reason LISTEN, if the address cannot be bound.
#ifndef QUIRE_COMMON_WIRE_LISTENER_H_
#define QUIRE_COMMON_WIRE_LISTENER_H_

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/wire/address.h"
#include "common/wire/silent_connections.h"

namespace quire {

class Listener {
 public:
  // Upper bound on open files when a connection is accepted, even if the process's limit is higher.
  // The bound limits memory, since a connection without calls takes some 50 KiB.
  static constexpr int kMaxOpenFiles = 4096;

  // Binds the address, or all addresses of a name; port 0 picks a free port. After Bind clients can
  // connect, but they wait until Start. num_files_spared lowers this port's bound on open files, by
  // at most a quarter. A flood on this port then leaves files for connections to the process's
  // other ports.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const Address& address,
                                                        int num_files_spared = 0);

  // Calls Stop.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Makes the server accept connections from this listener. Call once, before the server
  // is built.
  void AddTo(grpc::ServerBuilder& builder,
             const std::shared_ptr<grpc::ServerCredentials>& credentials =
                 grpc::InsecureServerCredentials());

  // Accepts connections until Stop. Call once, after the server has started.
  void Start();

  // True: closes all TCP connections now, and each new connection at once. False: accepts again.
  void SetRefusing(bool is_refusing);

  // Closes all TCP connections now. Connections over a Unix socket stay open.
  void EndConnections() const;

  // Accepts no more connections. Call before the server shuts down.
  void Stop();

  // Returns the bound address, with the port that was picked.
  const Address& address() const { return address_; }

 private:
  Listener(Address address, int num_files_spared);

  absl::Status BindUnix();
  absl::Status BindHost();
  void Run();
  int PollTimeoutMillis() const;
  void AcceptFrom(const FileDescriptor& socket);
  void HandOverSpeakers();
  // Returns the connection under a new descriptor below max_open_files_. If no such descriptor
  // becomes free, refuses the connection and returns a descriptor that is not open.
  FileDescriptor MoveBelowBound(FileDescriptor connection);
  void Refuse(FileDescriptor connection);
  void RefuseUser();
  void WaitForFiles();

  Address address_;
  const int max_open_files_;
  std::vector<FileDescriptor> sockets_;
  SilentConnections silent_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // kept alive: used at each connection
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::atomic<bool> is_refusing_ = false;
  FileDescriptor stop_;      // readable when the thread must end
  Instant files_logged_at_;  // time of the last log line about too many open files
  Instant users_logged_at_;  // time of the last log line about another user
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_LISTENER_H_
