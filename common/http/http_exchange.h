// HttpExchange holds the part of an answer that its connection has not taken yet. The responder
// adds to it from any thread; the connection takes from it on the server's thread.
//
// Thread safety: any thread. No callback runs with the lock held.
#ifndef QUIRE_COMMON_HTTP_HTTP_EXCHANGE_H_
#define QUIRE_COMMON_HTTP_HTTP_EXCHANGE_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"

#include "common/base/mutex.h"
#include "common/http/http_message.h"

namespace quire {

class HttpExchange {
 public:
  // Implemented by the connection. Any thread may call both functions. They must not wait, because
  // the caller holds the exchange's lock.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Makes the server's thread call Take soon.
    virtual void Wake() = 0;
    // Runs the task on the server's thread.
    virtual void Post(std::function<void()> task) = 0;
  };

  // How the body is sent: in chunks, plain until the connection ends, or not at all (HEAD).
  enum class Framing { kChunks, kPlain, kNone };

  // owner: must live until Detach.
  HttpExchange(Owner* owner, Framing framing, size_t max_unsent_bytes)
      : framing_(framing), max_unsent_bytes_(max_unsent_bytes), owner_(owner) {}

  // The result of Take.
  struct Taken {
    std::optional<HttpResponse> head;  // the answer's head, in one result of Take only
    bool is_stream = false;            // the body of `head` follows in pieces
    bool is_complete = false;          // the responder has given the whole answer
    bool is_abandoned = false;         // no answer came, and none will
    bool must_cut = false;             // the stream cannot be completed
  };

  // For the responder; see http_responder.h.
  void SetHead(HttpResponse response, bool is_stream);
  bool Write(std::string_view text);
  void Finish();
  void Abandon();
  bool is_gone() const;
  size_t unsent_bytes() const;
  void OnDrained(size_t max_unsent_bytes, std::function<void()> callback);
  void OnDisconnect(std::function<void()> callback);
  void Post(std::function<void()> task);

  // Only the connection calls the functions below. Take appends the queued bytes of a streamed body
  // to *body.
  Taken Take(std::string* body);
  // Sets the number of taken bytes that the kernel has not accepted yet. May run the OnDrained
  // callback.
  void SetInFlight(size_t bytes);
  bool has_whole_answer() const;
  // Forgets the owner. was_cut: true if the connection broke. In that case, runs the OnDisconnect
  // callback unless the responder has given the whole answer.
  void Detach(bool was_cut);

 private:
  enum class Phase { kUnanswered, kStreaming, kComplete };

  void WakeOwner() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t Unsent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return queue_.size() + in_flight_; }

  const Framing framing_;
  const size_t max_unsent_bytes_;
  mutable Mutex mutex_;
  Owner* owner_ ABSL_GUARDED_BY(mutex_);  // null after Detach
  bool is_woken_ ABSL_GUARDED_BY(mutex_) = false;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kUnanswered;
  std::optional<HttpResponse> head_ ABSL_GUARDED_BY(mutex_);
  bool is_stream_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool must_cut_ ABSL_GUARDED_BY(mutex_) = false;
  bool was_cut_ ABSL_GUARDED_BY(mutex_) = false;
  std::string queue_ ABSL_GUARDED_BY(mutex_);  // framed text that Take has not taken
  size_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t drain_mark_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void()> on_drained_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_disconnect_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_EXCHANGE_H_
