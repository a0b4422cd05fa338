// Wiretap is a proxy between a dialing and a listening rank. It forwards bytes in both directions,
// keeps a copy of them, and flips a bit on demand.
//
// Thread safety: any thread.
#ifndef QUIRE_TESTS_SUPPORT_WIRETAP_H_
#define QUIRE_TESTS_SUPPORT_WIRETAP_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"

#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"

namespace quire {

// Returns a socket that listens on a free port of 127.0.0.1.
FileDescriptor ListenOnLoopback();
int PortOf(const FileDescriptor& socket);
// Returns a connection to a port of 127.0.0.1, or a closed descriptor if the connection is refused.
FileDescriptor DialLoopback(int port);

class Wiretap {
 public:
  // Accepts connections, and forwards each to this port of 127.0.0.1.
  explicit Wiretap(int target_port);
  ~Wiretap();
  Wiretap(const Wiretap&) = delete;
  Wiretap& operator=(const Wiretap&) = delete;

  // Returns the wiretap's own address, in the form in which a rank announces its address.
  std::string rendezvous() const;

  // Returns all bytes so far from the dialing ends.
  std::string bytes_from_dialer() const;
  // Returns all bytes so far from the listening ends.
  std::string bytes_from_listener() const;

  // Flips a bit in the byte that follows the next num_bytes bytes from the dialing ends.
  void FlipAfter(int64_t num_bytes) { flip_after_ = num_bytes; }

 private:
  // The two sockets of a forwarded connection. Index 0: to the dialing end; 1: to the listening
  // end.
  using Pair = std::array<FileDescriptor, 2>;

  void Run();
  bool HandOn(const Pair& pair, size_t from);

  const int target_port_;
  const FileDescriptor listener_;
  std::atomic<bool> is_over_ = false;
  std::atomic<int64_t> flip_after_ = -1;
  std::list<Pair> pairs_;  // used by thread_ only
  mutable Mutex mutex_;
  std::array<std::string, 2> said_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_WIRETAP_H_
