// RetryPolicy bounds how long a client stays without an answer. Patience applies the policy to one
// request: it says how long to wait before the next attempt, and when to give up.
//
// Thread safety: one thread at a time for each object. Neither class reads a clock or sleeps.
#ifndef QUIRE_DEPLOY_CLIENTS_CPP_RETRY_POLICY_H_
#define QUIRE_DEPLOY_CLIENTS_CPP_RETRY_POLICY_H_

#include <chrono>
#include <optional>

namespace quire {

struct RetryPolicy {
  // Upper bound on the time that a request stays unanswered since its last message. 180 s cover the
  // replacement of a dead node: Kubernetes calls the node unreachable after 40 to 50 s, evicts its
  // pods 15 s later, a scheduler starts within seconds, and a rank loads its model in the rest of
  // the time.
  std::chrono::milliseconds max_unanswered{180'000};
  // Upper bound on the unanswered time until a server answers for the first time, by a message or
  // by a refusal such as LOADING; nullopt: max_unanswered. Set a shorter time if a person waits,
  // because an address where no server has answered is probably wrong.
  std::optional<std::chrono::milliseconds> max_unanswered_at_first;
  // The waits between attempts double from first_wait to max_wait, and each wait is shortened by up
  // to half at random. So each client makes its next attempt within max_wait of a server's restart,
  // and the attempts of all clients are spread over half of max_wait.
  std::chrono::milliseconds first_wait{100};
  std::chrono::milliseconds max_wait{1500};
  // Bounds the sum of the waits after refusals by full servers (RESOURCE_EXHAUSTED). The sum starts
  // again from 0 with each message. The last wait is shortened to keep this bound.
  std::chrono::milliseconds max_wait_for_a_place{30 * 60 * 1000};
};

class Patience {
 public:
  explicit Patience(const RetryPolicy& policy)
      : policy_(policy), limit_(policy.max_unanswered_at_first.value_or(policy.max_unanswered)) {}

  // Notes that a message has come: sets unanswered() and waited_for_a_place() to 0.
  void NoteMessage();

  // Notes that a server has answered: now max_unanswered applies, not max_unanswered_at_first.
  void NoteServer() { limit_ = policy_.max_unanswered; }

  // Returns how long to wait after an attempt that brought no message, or nullopt to give up.
  // lasted: duration of the attempt, of which at most 10 s count as unanswered. If the server is
  // dead, keepalive ends the attempt within 10 s. So an attempt that lasted longer was waiting in
  // the queue of a live server.
  std::optional<std::chrono::milliseconds> WaitUnanswered(std::chrono::milliseconds lasted);

  // Returns how long to wait after a full server's refusal, at least `asked`, or nullopt to give
  // up. A full server is alive, so unanswered() starts again from 0.
  std::optional<std::chrono::milliseconds> WaitForPlace(std::chrono::milliseconds asked);

  std::chrono::milliseconds unanswered() const { return unanswered_; }
  std::chrono::milliseconds waited_for_a_place() const { return waited_for_a_place_; }

 private:
  std::chrono::milliseconds NextWait();

  RetryPolicy policy_;
  std::chrono::milliseconds limit_;  // upper bound on unanswered_
  int num_waits_ = 0;
  std::chrono::milliseconds unanswered_{0};
  std::chrono::milliseconds waited_for_a_place_{0};
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLIENTS_CPP_RETRY_POLICY_H_
