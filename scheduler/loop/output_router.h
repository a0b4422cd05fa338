// OutputRouter carries what the core committed to the streams that wait for it. It turns token ids
// into text and looks for stop strings. A match ends its sequence; the router reports it back,
// because only the core ends sequences.
//
// A stream gets at most one update per sequence and call of Publish. With best_of, updates are sent
// only when every sequence has ended: the best are chosen then, and numbered from 0.
//
// The stream of a resumed request gets only the output that its client lacks: the output after
// Request::resumed or, if the core starts anew, all but the received tokens.
//
// Thread safety: not thread-safe; owned by the scheduler loop.
// Invariants:    positions of a sequence are handed to its stream without gap or repeat, from 0 or
//                after the received ones; a stream is ended exactly once, after the last update.
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

// Output of one sequence that the client has from an earlier stream.
struct ReceivedOutput {
  int32_t num_tokens = 0;
  bool has_ended = false;
  OutputText text;  // state after these tokens
};

// A request's wishes for its output that the core need not know.
struct OutputOptions {
  const Tokenizer* tokenizer = nullptr;  // null: token ids only; must outlive the router
  bool return_text = true;               // false: text is made only to find stop strings
  bool skip_special_tokens = true;
  bool return_logprobs = false;
  std::optional<int32_t> num_best;          // of best_of: number of sequences that are sent
  std::vector<std::string> stop_strings;    // for matched_stop
  std::optional<StopMatcher> stop_matcher;  // for stop_strings; none without them
  std::vector<ReceivedOutput> received;     // by sent sequence; empty: none

  // Returns the text of a sequence that follows this prompt, before its first token.
  OutputText NewText(std::span<const TokenId> prompt) const;
};

// WORKER_CRASH: the request or prefix crashed its workers too often. field: "request" or "prefix".
absl::Status WorkerCrashStatus(std::string_view field);

// DEADLINE_UNREACHABLE: refused, or dropped before any computation, as it would be too late.
absl::Status DeadlineUnreachableStatus();

// EXCEEDS_CAPACITY: does not fit workers that came back smaller.
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
    std::vector<SequenceRef> stopped;   // a stop string matched: the core should finish these
    std::vector<RequestId> overflowed;  // the reader is too slow: the core should abort these
  };

  explicit OutputRouter(LoopObserver* observer) : observer_(observer) {}

  // Opens a request. Call before the core hears of it: `request` still has its prompt.
  void Open(const Request& request, OutputOptions output, std::shared_ptr<ResponseStream> stream);

  // Ends a request that the core refused.
  void Reject(RequestId id, absl::Status status, Instant now);

  // Sets the stream's status for when the core reports the abort. The first status stays.
  void SetAbortStatus(RequestId id, absl::Status status);

  // The first slices of these requests were planned. Unknown ids are ignored.
  void OnStarted(std::span<const RequestId> ids, Instant now);

  Published Publish(std::span<const OutputEvent> events, Instant now);

  // Returns requests whose stream got nothing through since `before`. Ends such streams of requests
  // that are over but still have output to send.
  std::vector<RequestId> FindStalled(Instant before);

  size_t num_open() const { return requests_.size(); }
  std::vector<RequestId> OpenRequests() const;
  // The client's id of the request; empty if it is not open. Valid until it is closed.
  std::string_view RequestIdOf(RequestId id) const;

 private:
  struct SequenceOutput {
    OutputText text;
    int32_t num_tokens = 0;
    double sum_logprobs = 0.0;
    std::optional<Instant> last_token;  // of this stream
    int32_t num_new_tokens = 0;         // of this stream
    bool ended = false;
    SequenceUpdate update;  // of the present Publish
    bool has_update = false;
  };
  struct RequestOutput {
    std::shared_ptr<ResponseStream> stream;
    OutputOptions options;
    std::vector<TokenId> stop_token_ids;
    int32_t num_prompt_tokens = 0;
    int32_t max_tokens = 0;
    Instant arrival = 0;
    std::optional<Instant> started;
    std::optional<Instant> first_token;  // of any sequence
    Instant last_token = 0;              // of any sequence
    bool overflowed = false;             // output was dropped: nothing more is written
    std::vector<SequenceOutput> sequences;
    std::vector<ReceivedOutput> to_skip;  // by sent sequence, if the core starts anew
    bool is_held = false;                 // best_of: updates grow until the end
    bool is_search = false;               // beams: all tokens come at the end, at once
    absl::Status abort_status;            // OK until an abort
    absl::Status end_status;              // of the first sequence that ended badly
    RequestOutcome outcome = RequestOutcome::kStop;
  };

  void OnToken(const TokenCommitted& token, Instant now, Published& published);
  void OnFinished(const SequenceFinished& finished, Instant now, Published& published);
  // Returns the text to send with the token: empty for a stop token, or without return_text.
  std::string TextOf(RequestOutput& request, SequenceOutput& sequence, TokenId token);
  void EndSequence(RequestOutput& request, SequenceOutput& sequence, SequenceEnd::Reason reason);
  void ObserveToken(RequestOutput& request, SequenceOutput& sequence, Instant now);
  void MarkTouched(RequestId id, RequestOutput& request, SequenceOutput& sequence);
  // Marks the updates of the best as to be written. REQUIRES: is_held, and all sequences ended.
  void ReleaseBest(RequestId id, RequestOutput& request);
  void FlushTouched(Instant now, Published& published);
  void Observe(const RequestOutput& request, Instant now);
  void Close(RequestId id, RequestOutput& request, Instant now);

  LoopObserver* observer_;
  absl::flat_hash_map<RequestId, std::unique_ptr<RequestOutput>> requests_;
  std::vector<SequenceRef> touched_;                     // have an update to write
  std::vector<std::shared_ptr<ResponseStream>> unread_;  // ended, with unread output
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_OUTPUT_ROUTER_H_
