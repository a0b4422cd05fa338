// ListenerProbe dials an address of its own process every few seconds, and reports the server as
// deaf if no answer comes. Without the probe, a process that accepts no new connections would look
// healthy from inside while it still serves old connections.
//
// The server's first byte or the end of the connection counts as an answer. So a server that
// refuses a connection because it has too many connections does not count as deaf.
//
// Thread safety: is_deaf from any thread. The probe's own thread dials and waits for answers.
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
  std::chrono::milliseconds interval{3'000};  // from the end of a dial to the next dial
  std::chrono::milliseconds patience{3'000};  // a dial without an answer in this time is a miss
  int num_misses = 3;                         // misses in a row until the server counts as deaf
};

class ListenerProbe {
 public:
  // address: the address of a Listener, or a name of this machine. Instead of "0.0.0.0" and "::",
  // the probe dials the loopback address.
  ListenerProbe(const Address& address, bool is_tls, ListenerProbeTiming timing = {});
  ~ListenerProbe();
  ListenerProbe(const ListenerProbe&) = delete;
  ListenerProbe& operator=(const ListenerProbe&) = delete;

  // Returns true after num_misses dials in a row without an answer, until the next answer. Never
  // waits.
  bool is_deaf() const { return is_deaf_.load(std::memory_order_relaxed); }

 private:
  void Run();

  const Address address_;
  const std::string_view hello_;
  const ListenerProbeTiming timing_;
  std::atomic<bool> is_deaf_ = false;
  Mutex mutex_;
  CondVar stop_;  // notified while mutex_ is held
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_LISTENER_PROBE_H_
