// PeerListener connects the ranks of a group. In each pair the lower rank dials and the higher rank
// accepts. Both ranks have a secret, which the scheduler gave only to ranks of the group. Each
// epoch (one membership of the group) has a new secret. The higher rank closes a connection if the
// dialing end does not prove that it has the secret. Over TCP the secret is the key of the
// encryption and is never sent (TlsChannel). On a Unix socket, in a folder of one user, the dialing
// rank sends the secret, together with the memory that both ranks then share.
//
// A neighbor is a rank to which this rank connects. A stranger is an accepted connection that has
// not yet said which neighbor it is. A stranger first proves that it has the secret, then says its
// rank. At most 64 strangers are served at a time. A further one replaces the oldest stranger
// without a proof, else 64 idle connections could keep a rank out. Connect closes the remaining
// strangers when it returns.
//
// Thread safety: one caller at a time (the executor thread), except for rendezvous, waits_for_rank,
//                Abort and num_aborts.
// Errors:        kInvalidArgument, reason RENDEZVOUS, for a malformed membership; kUnavailable,
//                reason LISTEN, if AtPath or AtHost cannot listen; kUnavailable, reason
//                GROUP_BROKEN, message "rank N: cause", if Connect is aborted or takes too long.
#ifndef QUIRE_KERNELS_COLLECTIVE_PEER_LISTENER_H_
#define QUIRE_KERNELS_COLLECTIVE_PEER_LISTENER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/clock.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/peer_link.h"

namespace quire {

// A rank's membership in a group. When the group forms anew, it gets a new epoch and secret.
struct GroupMembership {
  int32_t rank = 0;
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  std::string secret;                   // kGroupSecretBytes bytes, equal on all ranks
  std::vector<std::string> rendezvous;  // addresses of all ranks; their number is a power of two
};

inline constexpr size_t kGroupSecretBytes = 32;

class PeerListener {
 public:
  // Listens on a Unix socket. Replaces a file at the path unless a process listens there; the
  // destructor removes the file. num_sharers: ranks that share the CPUs of this process. A waiting
  // rank spins before it sleeps only if these CPUs are at least as many as the sharers, and at
  // least as many as the ranks of the group that listen on Unix sockets.
  static absl::StatusOr<std::unique_ptr<PeerListener>> AtPath(const std::string& path,
                                                              int32_t num_sharers);
  // Listens on TCP at an address of this machine, such as "10.0.0.3" or "::1". Port 0 takes any
  // free port. Other ranks dial `public_host`.
  static absl::StatusOr<std::unique_ptr<PeerListener>> AtHost(const std::string& host,
                                                              int32_t port,
                                                              const std::string& public_host);
  ~PeerListener();
  PeerListener(const PeerListener&) = delete;
  PeerListener& operator=(const PeerListener&) = delete;

  // The address that other ranks dial: "unix:/path" or "tcp:host:port".
  const std::string& rendezvous() const { return rendezvous_; }

  // Connects this rank to its neighbors, which must call Connect at about the same time. Returns
  // when all neighbors are connected. Fails after `timeout_ns`, and on Abort. `num_aborts`: the
  // value of num_aborts() when the caller decided to connect. Every Abort after that makes Connect
  // fail, even one before the call of Connect.
  absl::StatusOr<std::shared_ptr<Communicator>> Connect(const GroupMembership& group,
                                                        int64_t timeout_ns,
                                                        uint64_t num_aborts);
  absl::StatusOr<std::shared_ptr<Communicator>> Connect(const GroupMembership& group,
                                                        int64_t timeout_ns) {
    return Connect(group, timeout_ns, num_aborts());
  }

  // Returns the rank for which Connect, or an operation of the resulting Communicator, waits; -1:
  // none. Safe from any thread.
  int32_t waits_for_rank() const { return waits_for_rank_->load(std::memory_order_relaxed); }

  // Ends a call of Connect that is under way. Safe from any thread.
  void Abort() { num_aborts_.fetch_add(1); }
  uint64_t num_aborts() const { return num_aborts_.load(); }

 private:
  // The first message of the dialing rank. It is sent as raw bytes, since both ends run the same
  // build on the same kind of machine.
  struct Hello {
    std::array<char, 8> magic = {'q', 'u', 'i', 'r', 'e', 'p', 'e', '3'};
    std::array<char, kGroupSecretBytes> secret = {};
    uint64_t scheduler_incarnation = 0;
    uint64_t group_epoch = 0;
    int32_t from_rank = 0;
    int32_t to_rank = 0;

    bool IsSameAs(const Hello& other) const;
  };

  PeerListener(int socket, std::string rendezvous, std::string path, bool spins);

  class Gathering;

  const int socket_;
  const std::string rendezvous_;
  const std::string path_;  // file of the Unix socket; empty with TCP
  const bool spins_;
  std::atomic<uint64_t> num_aborts_{0};
  const std::shared_ptr<std::atomic<int32_t>> waits_for_rank_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_PEER_LISTENER_H_
