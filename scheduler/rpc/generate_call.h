// GenerateCall is one Generate call, from its first byte to its status: it checks the request, has
// its text tokenized, hands it to the loop, and writes what comes back as the client reads.
//
//   library thread: parse, check ── TaskPool: tokenize ── Inbox ── loop: Write ... End
//
// Thread safety: library threads, a pool thread and the loop thread call it at once; mutex_ guards
//                what they share and is never held while anything is waited for.
// Lifetime:      shared by the library (until OnDone) and the loop (until End).
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

// What the calls of a service share. All must outlive the gRPC server.
struct ServiceParts {
  const ServedModel* model = nullptr;
  Inbox* inbox = nullptr;
  ServingState* state = nullptr;
  TaskPool* tasks = nullptr;
  LiveRequests* live_requests = nullptr;
  LoopObserver* observer = nullptr;
  UnreadAnswers* unread = nullptr;
  OutboxLimits outbox_limits;
  ApiKeys* api_keys = nullptr;       // of those who may call; null: anybody
  bool has_priorities = false;       // see RequestRules
  bool requires_cache_salt = false;  // likewise
  bool logs_requests = false;
};

// Fills in the message of an update, except `started`. For an update that an Outbox gives out the
// message is smaller than kPublicMaxSendBytes.
void FillResponse(const SequenceUpdate& update, v1::GenerateResponse* response);

class GenerateCall : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                     public ResponseStream,
                     public LiveRequests::Abortable,
                     public std::enable_shared_from_this<GenerateCall> {
 public:
  // The reactor of a new call; it deletes itself.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(const ServiceParts* parts,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& request);

  // Of ResponseStream: the loop.
  void OnQueued() override;
  [[nodiscard]] bool Write(SequenceUpdate update, Instant now) override;
  void End(absl::Status status) override;
  Instant stalled_since() const override;
  std::string_view request_id() const override { return request_id_; }

  // Of LiveRequests::Abortable.
  void Abort(absl::Status status) override;
  Instant arrival() const override { return arrival_; }

  // Of the reactor: the library.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  GenerateCall(const ServiceParts* parts, grpc::CallbackServerContext* context);

  // Checks and admits, or says why not. OK: the loop or the pool goes on.
  absl::Status Begin(const grpc::ByteBuffer& request);
  // On the pool: what takes long. The prompt's tokens, and the text of tokens that are resumed.
  void Tokenize();
  absl::StatusOr<std::vector<TokenId>> PromptTokens();
  // Whether the client still waits for what the pool does.
  absl::Status CheckWanted() const;
  absl::Status Admit(std::vector<TokenId> prompt);
  // Ends a call that the loop never heard of.
  void Refuse(absl::Status status);
  // Starts the next write, or sends the status when all is written.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishNow(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Encode(const SequenceUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The line of --enable-log-requests.
  void LogEnd() const;

  const ServiceParts& parts_;
  grpc::CallbackServerContext* const context_;
  const Instant arrival_;
  Instant deadline_ = kInfiniteFuture;
  std::shared_ptr<GenerateCall> self_;  // until OnDone
  // Written before the call is shared.
  GenerateSpec spec_;
  RequestRules rules_;
  std::string request_id_;
  std::string live_name_;  // in live_requests
  bool is_resumed_ = false;

  mutable absl::Mutex mutex_;
  Outbox outbox_ ABSL_GUARDED_BY(mutex_);
  std::optional<RequestId> loop_id_ ABSL_GUARDED_BY(mutex_);   // once admitted
  std::optional<absl::Status> abort_ ABSL_GUARDED_BY(mutex_);  // before it was admitted
  bool is_abort_posted_ ABSL_GUARDED_BY(mutex_) = false;       // after
  std::optional<absl::Status> end_status_ ABSL_GUARDED_BY(mutex_);
  bool is_registered_ ABSL_GUARDED_BY(mutex_) = false;  // in live_requests
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;           // Finish was called
  absl::Status status_ ABSL_GUARDED_BY(mutex_);                // with what
  std::optional<Instant> started_at_ ABSL_GUARDED_BY(mutex_);  // Started was sent
  int32_t num_prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t max_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_output_tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // that were sent
  uint64_t seed_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::GenerateResponse response_ ABSL_GUARDED_BY(mutex_);  // reused
  grpc::ByteBuffer buffer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_GENERATE_CALL_H_
