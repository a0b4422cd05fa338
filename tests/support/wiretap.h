// Wiretap stands between a rank that dials and the one that listens: it hands on what each of them
// says, keeps a copy, and changes a byte when it is told to.
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

// A socket that listens on a port of 127.0.0.1 which nobody else has.
FileDescriptor ListenOnLoopback();
int PortOf(const FileDescriptor& socket);
// A connection to it; not open when it is refused.
FileDescriptor DialLoopback(int port);

class Wiretap {
 public:
  // In front of whoever listens at this port of 127.0.0.1.
  explicit Wiretap(int target_port);
  ~Wiretap();
  Wiretap(const Wiretap&) = delete;
  Wiretap& operator=(const Wiretap&) = delete;

  // Where it is found, as a rank's rendezvous.
  std::string rendezvous() const;

  // What those who dialled have said so far, and what those who listen have.
  std::string said_by_dialler() const;
  std::string said_by_listener() const;

  // Turns a bit of the byte that comes after so many more from those who dialled.
  void FlipAfter(int64_t num_bytes) { flip_after_ = num_bytes; }

 private:
  // Index: 0 dials, 1 listens.
  using Pair = std::array<FileDescriptor, 2>;

  void Run();
  bool HandOn(const Pair& pair, size_t from);

  const int target_port_;
  const FileDescriptor listener_;
  std::atomic<bool> is_over_ = false;
  std::atomic<int64_t> flip_after_ = -1;
  std::list<Pair> pairs_;  // the thread's
  mutable Mutex mutex_;
  std::array<std::string, 2> said_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_WIRETAP_H_
