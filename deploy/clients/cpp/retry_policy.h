// RetryPolicy bounds how long a client stays without an answer. Patience applies the policy to one
// request: it says how long to wait before the next attempt, and when to give up.
//
// Thread safety: value types. Neither reads a clock nor sleeps.
#ifndef QUIRE_DEPLOY_CLIENTS_CPP_RETRY_POLICY_H_
#define QUIRE_DEPLOY_CLIENTS_CPP_RETRY_POLICY_H_

#include <chrono>
#include <optional>

namespace quire {

struct RetryPolicy {
  // How long a request may stay unanswered since its last message. 180 s cover the replacement of a
  // dead node: Kubernetes calls it unreachable after 40 to 50 s, its pods are evicted 15 s later,
  // a scheduler starts within seconds, and a rank loads its model in the rest of the time.
  std::chrono::milliseconds max_unanswered{180'000};
  // The same bound until the first message has come; nullopt: max_unanswered. Set a lower one if a
  // person waits, because at first a wrong address is more likely than a server that is away.
  std::optional<std::chrono::milliseconds> max_unanswered_at_first;
  // Waits double from first_wait to max_wait, each shortened by up to half at random. So a server
  // that returns is asked within max_wait, and its clients arrive spread over half of max_wait.
  std::chrono::milliseconds first_wait{100};
  std::chrono::milliseconds max_wait{1500};
  // Bounds the sum of waits for full servers since the last message. The last wait is shortened to
  // keep the bound.
  std::chrono::milliseconds max_wait_for_a_place{30 * 60 * 1000};
};

class Patience {
 public:
  explicit Patience(const RetryPolicy& policy) : policy_(policy) {}

  // Sets unanswered() and waited_for_a_place() to 0, because a message has come.
  void NoteMessage();

  // Returns how long to wait after an attempt that no server answered, or nullopt to give up.
  // lasted: duration of the attempt. At most 10 s of it count: keepalive ends an attempt at a dead
  // server sooner, so a longer attempt waited in a live server's queue.
  std::optional<std::chrono::milliseconds> WaitUnanswered(std::chrono::milliseconds lasted);

  // Returns how long to wait after a full server's refusal, `asked` at least, or nullopt to give
  // up. A full server is alive, so the unanswered time starts anew.
  std::optional<std::chrono::milliseconds> WaitForPlace(std::chrono::milliseconds asked);

  std::chrono::milliseconds unanswered() const { return unanswered_; }
  std::chrono::milliseconds waited_for_a_place() const { return waited_for_a_place_; }

 private:
  std::chrono::milliseconds NextWait();

  RetryPolicy policy_;
  bool has_begun_ = false;
  int num_waits_ = 0;
  std::chrono::milliseconds unanswered_{0};
  std::chrono::milliseconds waited_for_a_place_{0};
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLIENTS_CPP_RETRY_POLICY_H_
