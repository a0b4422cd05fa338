// ListenerProbe dials an address of its own process now and then, and says when nobody answers
// there any more: a process that serves its old connections and takes no new ones looks healthy
// from inside.
//
// An answer is the first byte of the server or the end of the connection, so a server that refuses
// connections, because it has too many, is no deaf one.
//
// Thread safety: is_deaf from any thread. A thread of its own dials, and may wait.
#ifndef QUIRE_COMMON_WIRE_LISTENER_PROBE_H_
#define QUIRE_COMMON_WIRE_LISTENER_PROBE_H_

#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"

#include "common/base/mutex.h"
#include "common/wire/address.h"

namespace quire {

struct ListenerProbeTiming {
  std::chrono::milliseconds interval{3'000};  // from one answer, or none, to the next dial
  std::chrono::milliseconds patience{3'000};  // for one answer
  int num_misses = 3;                         // in a row, until it is deaf
};

class ListenerProbe {
 public:
  // Of a Listener: an address, or a name that is one of this machine. "0.0.0.0" and "::" are
  // dialled on loopback.
  ListenerProbe(const Address& address, bool is_tls, ListenerProbeTiming timing = {});
  ~ListenerProbe();
  ListenerProbe(const ListenerProbe&) = delete;
  ListenerProbe& operator=(const ListenerProbe&) = delete;

  // What the last dials said, at once. False at first, and again after an answer.
  bool is_deaf() const { return is_deaf_.load(std::memory_order_relaxed); }

 private:
  void Run();

  const Address address_;
  const std::string_view hello_;
  const ListenerProbeTiming timing_;
  std::atomic<bool> is_deaf_ = false;
  Mutex mutex_;
  CondVar stop_;  // notified under mutex_
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_LISTENER_PROBE_H_
