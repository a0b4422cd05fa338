// OutputRouter takes the tokens that the core has committed, and writes them to the streams of
// their requests. It turns token ids into text and looks for stop strings. When a stop string
// matches, Publish returns the sequence to the caller, because only the core ends sequences.
//
// Each call of Publish writes at most one update per sequence to a stream. With best_of, nothing is
// written until every sequence has ended. Then the best sequences are chosen, and numbered from 0.
//
// The stream of a resumed request gets only the output that its client lacks. Either the core
// continues after Request::resumed, or the core starts the request anew and the router drops the
// tokens that the client has received.
//
// Thread safety: not thread-safe; owned by the scheduler loop.
// Invariants:    a stream gets the tokens of a sequence without gap or repeat, from the first token
//                that its client lacks; a stream is ended exactly once, after its last update.
// Cost:          O(bytes of text) per token.
#ifndef QUIRE_SCHEDULER_LOOP_OUTPUT_ROUTER_H_
#define QUIRE_SCHEDULER_LOOP_OUTPUT_ROUTER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "scheduler/core/output_event.h"
#include "scheduler/core/request.h"
#include "scheduler/loop/loop_observer.h"
#include "scheduler/loop/output_text.h"
#include "scheduler/loop/response_stream.h"
#include "scheduler/text/stop_matcher.h"
#include "scheduler/text/tokenizer.h"

namespace quire {

// The part of a sequence's output that the client has received from an earlier stream.
struct ReceivedOutput {
  int32_t num_tokens = 0;
  bool has_ended = false;
  OutputText text;  // state after num_tokens tokens
};

// Output options of a request. The core does not need them.
struct OutputOptions {
  const Tokenizer* tokenizer = nullptr;  // must outlive the router; null: only ids are sent
  bool return_text = true;               // false: text is made only to find stop strings
  bool skip_special_tokens = true;
  bool return_logprobs = false;
  std::optional<int32_t> num_best;          // with best_of: number of sequences to send
  std::vector<std::string> stop_strings;    // for SequenceEnd::matched_stop
  std::optional<StopMatcher> stop_matcher;  // matches stop_strings; nullopt without stop strings
  int32_t min_tokens = 0;                   // stop strings count only after this many tokens
  bool include_stop_in_output = false;      // true: the text of a stop token is sent
  std::vector<ReceivedOutput> received;     // one per sequence of the stream, or empty

  // Returns the OutputText of a sequence that follows this prompt and has no token yet.
  OutputText NewText(std::span<const TokenId> prompt) const;
};

// WORKER_CRASH: the request or prefix crashed its workers too often. `field` says which of the two.
absl::Status WorkerCrashStatus(std::string_view field);

// DEADLINE_UNREACHABLE: the request was refused, or dropped before any computation, because it
// would miss its deadline.
absl::Status DeadlineUnreachableStatus();

// EXCEEDS_CAPACITY: the request fitted an earlier worker group, but not the present, smaller one.
absl::Status NoCapacityStatus();

// SLOW_CONSUMER: the client reads the stream's output too slowly.
absl::Status SlowConsumerStatus();

class OutputRouter {
 public:
  struct SequenceRef {
    RequestId request_id;
    int32_t sequence_index = 0;
  };
  struct Published {
    // Sequences in which a stop string matched: the core should finish them.
    std::vector<SequenceRef> stopped;
    // Requests whose clients read too slowly: the core should abort them.
    std::vector<RequestId> overflowed;
  };

  explicit OutputRouter(LoopObserver* observer) : observer_(observer) {}

  // Opens a request. REQUIRES: the request still has its prompt, so call Open before the request
  // moves to the core.
  void Open(const Request& request, OutputOptions output, std::shared_ptr<ResponseStream> stream);

  // Ends a request that the core refused.
  void Reject(RequestId id, absl::Status status, Instant now);

  // Sets the status with which the stream ends when the core reports the abort. If called twice for
  // a request, the first status stays.
  void SetAbortStatus(RequestId id, absl::Status status);

  // Records `now` as the start of these requests, whose first step was planned. Ignores unknown
  // ids.
  void OnStarted(std::span<const RequestId> ids, Instant now);

  Published Publish(std::span<const OutputEvent> events, Instant now);

  // Finds the stalled streams, whose stalled_since() is less than `before`. Ends a stalled stream
  // with SLOW_CONSUMER if its request is closed. Returns the open requests with stalled streams.
  std::vector<RequestId> FindStalled(Instant before);

  size_t num_open() const { return requests_.size(); }
  std::vector<RequestId> OpenRequests() const;
  // Returns the client's id of the request; empty if the request is not open. The view is valid
  // until the request ends.
  std::string_view RequestIdOf(RequestId id) const;

 private:
  struct SequenceOutput {
    OutputText text;
    int32_t num_tokens = 0;
    double sum_logprobs = 0.0;
    std::optional<Instant> last_token;  // time of the last token in this stream
    int32_t num_new_tokens = 0;         // tokens committed in this stream
    bool ended = false;
    SequenceUpdate update;  // output not written yet
    bool has_update = false;
  };
  struct RequestOutput {
    std::shared_ptr<ResponseStream> stream;
    OutputOptions options;
    std::vector<TokenId> stop_token_ids;
    int32_t num_prompt_tokens = 0;
    int32_t num_cached_prompt_tokens = 0;
    int32_t max_tokens = 0;
    Instant arrival = 0;
    std::optional<Instant> started;
    std::optional<Instant> first_token;  // time of the first token of any sequence
    Instant last_token = 0;              // time of the last token of any sequence
    bool overflowed = false;             // output was dropped, so nothing more is written
    std::vector<SequenceOutput> sequences;
    std::vector<ReceivedOutput> to_skip;  // output to drop, since the client has it; empty: none
    bool is_held = false;                 // best_of: no update is written before all sequences end
    bool is_search = false;     // beam search: all tokens are committed when the search ends
    absl::Status abort_status;  // OK until an abort
    absl::Status end_status;    // status of the first sequence that failed; OK: none
    RequestOutcome outcome = RequestOutcome::kStop;
  };

  void OnToken(const TokenCommitted& token, Instant now, Published& published);
  void OnPromptScored(const PromptScored& scored, Instant now);
  void OnFinished(const SequenceFinished& finished, Instant now, Published& published);
  // Returns the text to send with the token: empty for a stop token, or without return_text.
  std::string TextOf(RequestOutput& request, SequenceOutput& sequence, TokenId token);
  void EndSequence(RequestOutput& request, SequenceOutput& sequence, SequenceEnd::Reason reason);
  void ObserveToken(RequestOutput& request, SequenceOutput& sequence, Instant now);
  void MarkTouched(RequestId id, RequestOutput& request, SequenceOutput& sequence);
  // Queues the updates of the best sequences for FlushTouched. REQUIRES: request.is_held; all
  // sequences of the request have ended.
  void ReleaseBest(RequestId id, RequestOutput& request);
  void FlushTouched(Instant now, Published& published);
  void Observe(const RequestOutput& request, Instant now);
  void Close(RequestId id, RequestOutput& request, Instant now);

  LoopObserver* observer_;
  absl::flat_hash_map<RequestId, std::unique_ptr<RequestOutput>> requests_;
  std::vector<SequenceRef> touched_;                     // sequences with an update to write
  std::vector<std::shared_ptr<ResponseStream>> unread_;  // streams that ended with unread output
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_OUTPUT_ROUTER_H_
