// Listener takes connections for a gRPC server, in place of the library's own ports. In 1.51.1
// those take any number, and stop for good once the process has no file descriptor left
// (CVE-2023-4785).
//
// The library gets a connection when its client has said a word (silent_connections.h). What comes
// while too many files are open takes the place of the one that has been silent longest; where none
// is silent it is closed at once, so that the rest of the process always has some files left. It
// counts open files, and not connections, since the library does not tell when one ends: a new
// descriptor is the lowest that is free, so one of at least N says that N files are open.
//
// Who reaches a Unix socket of ours is trusted with all that is behind it, so connections of other
// users than this process's and root are closed, whatever the permissions of the file are. The log
// has a line every ten seconds at most about connections that are refused, for each of the two
// reasons, or that wait since accept fails. It is tried again ten times a second.
//
// Thread safety: one caller at a time. A thread of its own accepts.
// Errors:        kUnavailable, reason LISTEN, when the address cannot be bound.
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
  // Files that may be open when a connection is taken, whatever the limit of the process. A
  // connection without calls takes some 50 KiB.
  static constexpr int kMaxOpenFiles = 4096;

  // Binds the address, all of them where a name has several; port 0 is any free one. Clients can
  // connect from here on, and wait until Start. num_files_left: by so many files its bound is lower
  // than that of other ports of the process, at most a quarter, so that a flood of this port leaves
  // them connections.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const Address& address,
                                                        int num_files_left = 0);

  // Stops.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Connections are handed to the server that is built. Once, before it is built.
  void AddTo(grpc::ServerBuilder& builder,
             const std::shared_ptr<grpc::ServerCredentials>& credentials =
                 grpc::InsecureServerCredentials());

  // Accepts from now on, until Stop. Once, when the server runs.
  void Start();

  // While it refuses, connections are closed as they come; those that are there are closed now.
  void SetRefusing(bool is_refusing);

  // No connection is taken any more. Before the server shuts down.
  void Stop();

  // With the port that was taken.
  const Address& address() const { return address_; }

 private:
  Listener(Address address, int num_files_left);

  absl::Status BindUnix();
  absl::Status BindHost();
  void Run();
  int PollTimeoutMillis() const;
  void AcceptFrom(const FileDescriptor& socket);
  void HandOverSpeakers();
  // Not open: there is no room, and it is refused.
  FileDescriptor MoveBelowBound(FileDescriptor connection);
  void Refuse(FileDescriptor connection);
  void EndConnections() const;
  void RefuseUser();
  void WaitForFiles();

  Address address_;
  const int max_open_files_;
  std::vector<FileDescriptor> sockets_;
  SilentConnections silent_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // asked at each connection
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::atomic<bool> is_refusing_ = false;
  FileDescriptor stop_;      // readable: the thread ends
  Instant files_logged_at_;  // a refusal for too many open files
  Instant users_logged_at_;  // one for the user
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_LISTENER_H_
