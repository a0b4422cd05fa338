// GenerateCall is one Generate call, from its first byte to its status. It checks the request, lets
// the task pool tokenize the prompt's text, hands the request to the loop, and writes the output as
// fast as the client reads.
//
//   gRPC thread: parse, check ── TaskPool: tokenize ── Inbox ── loop: Write ... End
//
// Thread safety: called by gRPC threads, a thread of the task pool and the loop thread at the same
//                time. mutex_ guards the members that these threads share, and is never held during
//                a wait.
// Lifetime:      gRPC holds a reference until OnDone, and the loop holds one until End.
#ifndef QUIRE_SCHEDULER_RPC_GENERATE_CALL_H_
#define QUIRE_SCHEDULER_RPC_GENERATE_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "proto/v1/generation.pb.h"

#include "scheduler/loop/inbox.h"
#include "scheduler/loop/loop_observer.h"
#include "scheduler/loop/outbox.h"
#include "scheduler/loop/response_stream.h"
#include "scheduler/loop/serving_state.h"
#include "scheduler/rpc/caller.h"
#include "scheduler/rpc/generate_request.h"
#include "scheduler/rpc/live_requests.h"
#include "scheduler/rpc/served_model.h"
#include "scheduler/rpc/task_pool.h"
#include "scheduler/rpc/unread_answers.h"

namespace quire {

// Parts that all calls of a service share. Every object pointed to must outlive the gRPC server.
struct ServiceParts {
  const ServedModel* model = nullptr;
  Inbox* inbox = nullptr;
  ServingState* state = nullptr;
  TaskPool* tasks = nullptr;
  LiveRequests* live_requests = nullptr;
  LoopObserver* observer = nullptr;
  UnreadAnswers* unread = nullptr;
  OutboxLimits outbox_limits;
  ApiKeys* api_keys = nullptr;       // null: every client is permitted
  bool has_priorities = false;       // see RequestRules
  bool requires_cache_salt = false;  // see RequestRules
  bool logs_requests = false;
};

// Sets all fields of *response, except `started`, from an update. If the update comes from an
// Outbox, the response is smaller than kPublicMaxSendBytes.
void FillResponse(const SequenceUpdate& update, v1::GenerateResponse* response);

class GenerateCall : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                     public ResponseStream,
                     public LiveRequests::Abortable,
                     public std::enable_shared_from_this<GenerateCall> {
 public:
  // Starts a call and returns its reactor, which deletes itself.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(const ServiceParts* parts,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& request);

  // ResponseStream, called by the loop.
  void OnQueued() override;
  [[nodiscard]] bool Write(SequenceUpdate update, Instant now) override;
  void End(absl::Status status) override;
  Instant stalled_since() const override;
  std::string_view request_id() const override { return request_id_; }

  // LiveRequests::Abortable.
  void Abort(absl::Status status) override;
  Instant arrival() const override { return arrival_; }

  // ServerWriteReactor, called by gRPC.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  GenerateCall(const ServiceParts* parts, grpc::CallbackServerContext* context);

  // Checks the request. Hands a request with text or resumed tokens to the task pool, and any other
  // request to the loop. Returns the error if the request is refused.
  absl::Status Begin(const grpc::ByteBuffer& request);
  // Runs on the task pool: tokenizes the prompt, rebuilds the text of resumed tokens, and hands the
  // request to the loop.
  void Tokenize();
  absl::StatusOr<std::vector<TokenId>> PromptTokens();
  // Returns an error if the deadline has passed or the call was aborted.
  absl::Status CheckWanted() const;
  absl::Status Admit(std::vector<TokenId> prompt);
  // Ends a call that never reached the loop.
  void Refuse(absl::Status status);
  // Starts the next write, or sends the status when all output is written.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishNow(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Encode(const SequenceUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Logs the line of --enable-log-requests.
  void LogEnd() const;

  const ServiceParts& parts_;
  grpc::CallbackServerContext* const context_;
  const Instant arrival_;
  Instant deadline_ = kInfiniteFuture;
  std::shared_ptr<GenerateCall> self_;  // keeps the call alive until OnDone
  // The next five members are set before other threads see the call. Afterwards only the thread
  // that calls Admit uses spec_.
  GenerateSpec spec_;
  RequestRules rules_;
  std::string request_id_;
  std::string live_name_;  // this call's name in live_requests
  bool is_resumed_ = false;

  mutable absl::Mutex mutex_;
  Outbox outbox_ ABSL_GUARDED_BY(mutex_);
  std::optional<RequestId> loop_id_ ABSL_GUARDED_BY(mutex_);   // set by Admit
  std::optional<absl::Status> abort_ ABSL_GUARDED_BY(mutex_);  // abort before loop_id_ was set
  bool is_abort_posted_ ABSL_GUARDED_BY(mutex_) = false;       // AbortRequest was posted
  std::optional<absl::Status> end_status_ ABSL_GUARDED_BY(mutex_);
  bool is_registered_ ABSL_GUARDED_BY(mutex_) = false;  // live_requests has the call
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;           // Finish was called
  absl::Status status_ ABSL_GUARDED_BY(mutex_);                // status passed to Finish
  std::optional<Instant> started_at_ ABSL_GUARDED_BY(mutex_);  // time at which Started was sent
  int32_t num_prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t max_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_output_tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // tokens sent so far
  uint64_t seed_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::GenerateResponse response_ ABSL_GUARDED_BY(mutex_);  // reused by each write
  grpc::ByteBuffer buffer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_GENERATE_CALL_H_
