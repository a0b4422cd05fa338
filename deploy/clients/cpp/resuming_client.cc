#include "deploy/clients/cpp/resuming_client.h"

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <grpcpp/client_context.h>

#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Added to a request's timeout to make the deadline of the gRPC call. A live server itself ends
// late requests and says why; the deadline is for a server that can no longer do so.
constexpr milliseconds kDeadlineGrace(1000);
constexpr std::chrono::hours kLongestTimeout(24 * 365);

// Returns the delay in the status's RetryInfo; nullopt if the status has no RetryInfo.
std::optional<milliseconds> RetryDelayOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) {
    return std::nullopt;
  }
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::RetryInfo info;
    if (any.Is<google::rpc::RetryInfo>() && any.UnpackTo(&info)) {
      const std::chrono::seconds longest = kLongestTimeout;
      const int64_t seconds = std::clamp<int64_t>(info.retry_delay().seconds(), 0, longest.count());
      const int32_t nanos = std::clamp(info.retry_delay().nanos(), 0, 999'999'999);
      return std::chrono::ceil<milliseconds>(std::chrono::seconds(seconds) +
                                             std::chrono::nanoseconds(nanos));
    }
  }
  return std::nullopt;
}

// Returns true if the request should be sent again. If a full server refuses a new request, the
// request ends. A resumed request was accepted before, so it waits until a server has room.
bool IsWorthARetry(const grpc::Status& status, bool is_resuming) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return true;
    // gRPC ends calls with CANCELLED in a server that shuts down. A cancel by the caller itself is
    // final, and never comes here (Attempt::is_final).
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
      // Quire's servers always send details, so a status without details comes from gRPC itself.
      return status.error_details().empty();
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return is_resuming && RetryDelayOf(status).has_value();
    default:
      return false;
  }
}

grpc::Status DataLoss(const std::string& what) {
  return {grpc::StatusCode::DATA_LOSS, "stream: " + what};
}

milliseconds TimeoutOf(const v1::GenerateRequest& request) {
  return std::clamp<milliseconds>(
      milliseconds(request.timeout_ms()), milliseconds(0), kLongestTimeout);
}

// The part of an answer that has arrived so far, over all streams of the request.
class Progress {
 public:
  explicit Progress(int num_sequences) : num_sequences_(num_sequences) {}

  // Adds a message to the answer. Clears a second `started` in the message, because the caller has
  // seen the first one. Returns DATA_LOSS if the message does not continue where the last one
  // ended.
  grpc::Status Take(v1::GenerateResponse* response) {
    grpc::Status status;
    if (response->has_started() && has_started()) {
      status = CheckStarted(response->started());
      response->clear_started();
    } else if (response->has_started()) {
      Start(response->started());
    }
    if (status.ok() && response->has_prompt_logprobs()) {
      status = TakePrompt(response->prompt_logprobs());
    }
    if (status.ok() && response->has_chunk()) {
      status = TakeChunk(response->chunk());
    }
    if (status.ok() && response->has_finished()) {
      status = TakeFinished(response->finished());
    }
    return status;
  }

  // Writes the part of the answer that has arrived into `request`, so that the next attempt resumes
  // behind that part.
  void FillNext(v1::GenerateRequest* request) const {
    *request->mutable_resume() = resume_;
    if (has_started()) {
      request->set_request_id(request_id_);
    }
  }

  bool has_started() const { return resume_.sequences_size() > 0; }
  bool is_complete() const {
    return has_started() && std::all_of(resume_.sequences().begin(),
                                        resume_.sequences().end(),
                                        [](const auto& each) { return each.has_ended(); });
  }

 private:
  void Start(const v1::Started& started) {
    resume_.set_seed(started.seed());
    resume_.set_determinism_fingerprint(started.determinism_fingerprint());
    if (started.max_tokens() > 0) {  // older servers do not send max_tokens
      resume_.set_max_tokens(started.max_tokens());
    }
    request_id_ = started.request_id();
    for (int i = 0; i < num_sequences_; ++i) {
      resume_.add_sequences();
    }
  }

  grpc::Status CheckStarted(const v1::Started& started) const {
    const bool is_same = started.seed() == resume_.seed() &&
                         started.determinism_fingerprint() == resume_.determinism_fingerprint();
    return is_same ? grpc::Status::OK
                   : DataLoss("a server resumed with another seed or determinism fingerprint");
  }

  // Returns nullptr if there is no such sequence, or the sequence has ended.
  v1::ResumedSequence* Find(int index) {
    if (index < 0 || index >= resume_.sequences_size() || resume_.sequences(index).has_ended()) {
      return nullptr;
    }
    return resume_.mutable_sequences(index);
  }

  grpc::Status TakePrompt(const v1::PromptLogprobs& prompt) {
    if (prompt.first_position() != resume_.num_prompt_logprobs() + 1) {
      return DataLoss("log-probabilities of the prompt skip or repeat tokens");
    }
    resume_.set_num_prompt_logprobs(resume_.num_prompt_logprobs() + prompt.logprobs_size());
    return grpc::Status::OK;
  }

  grpc::Status TakeChunk(const v1::Chunk& chunk) {
    v1::ResumedSequence* sequence = Find(chunk.index());
    if (sequence == nullptr || chunk.first_position() != sequence->token_ids_size()) {
      return DataLoss("a chunk skips or repeats tokens");
    }
    sequence->mutable_token_ids()->MergeFrom(chunk.token_ids());
    return grpc::Status::OK;
  }

  grpc::Status TakeFinished(const v1::Finished& finished) {
    v1::ResumedSequence* sequence = Find(finished.index());
    if (sequence == nullptr || finished.num_output_tokens() != sequence->token_ids_size()) {
      return DataLoss("a sequence finished twice, or with tokens missing");
    }
    sequence->set_has_ended(true);
    return grpc::Status::OK;
  }

  const int num_sequences_;
  v1::Resume resume_;
  std::string request_id_;
};

// Outcome of one stream.
struct Attempt {
  grpc::Status status;
  bool has_brought_something = false;
  bool is_final = false;  // true if the client itself ended the stream, and must not retry
};

Attempt Stream(v1::GenerationService::Stub& stub,
               const std::string& api_key,
               const v1::GenerateRequest& request,
               const ResumingClient::OnResponse& on_response,
               Progress& progress) {
  grpc::ClientContext context;
  if (!api_key.empty()) {
    context.AddMetadata("authorization", "Bearer " + api_key);
  }
  if (request.has_timeout_ms()) {
    context.set_deadline(std::chrono::system_clock::now() + TimeoutOf(request) + kDeadlineGrace);
  }
  const auto reader = stub.Generate(&context, request);
  Attempt attempt;
  v1::GenerateResponse response;
  while (!attempt.is_final && reader->Read(&response)) {
    attempt.status = progress.Take(&response);  // clears `started` if the caller has had one
    attempt.has_brought_something |= response.has_started() || response.has_prompt_logprobs() ||
                                     response.has_chunk() || response.has_finished();
    if (attempt.status.ok() && !on_response(response)) {
      attempt.status = {grpc::StatusCode::CANCELLED, "request: cancelled by the caller"};
    }
    attempt.is_final = !attempt.status.ok();
  }
  if (attempt.is_final) {
    context.TryCancel();
    reader->Finish();
    return attempt;
  }
  attempt.status = reader->Finish();
  if (attempt.status.ok() && !progress.is_complete()) {
    attempt.status = DataLoss("ended before the answer was complete");
  }
  return attempt;
}

bool IsFull(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
}

// Returns the status for a client that gives up: the last failure, with the time that the client
// has waited added to the message.
grpc::Status GivenUp(const grpc::Status& last, const Patience& patience) {
  const auto seconds = [](milliseconds time) {
    return std::to_string(std::chrono::floor<std::chrono::seconds>(time).count()) + " s";
  };
  const std::string after =
      IsFull(last) ? "waiting for full servers for " + seconds(patience.waited_for_a_place())
                   : seconds(patience.unanswered()) + " without an answer";
  return {last.error_code(),
          last.error_message() + " (given up after " + after + ")",
          last.error_details()};
}

// Sleeps inside gRPC, because gRPC reconnects only while a thread waits inside gRPC. Otherwise no
// thread would reconnect for up to 5 s, the interval of gRPC's own polls.
void SleepUntil(Clock::time_point end, grpc::Channel& channel) {
  const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
  const auto deadline = std::chrono::system_clock::now() + left;
  // Tries to connect only once. Otherwise, if a server ends each connection at once, gRPC would
  // dial again and again without a pause.
  bool tries_to_connect = true;
  while (Clock::now() < end) {
    const grpc_connectivity_state state = channel.GetState(std::exchange(tries_to_connect, false));
    if (state == GRPC_CHANNEL_SHUTDOWN) {  // an in-process channel has no other state
      std::this_thread::sleep_until(end);
    } else {
      channel.WaitForStateChange(state, deadline);
    }
  }
}

}  // namespace

grpc::ChannelArguments ClientChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);  // the time limit of one attempt
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 4000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  arguments.SetInt("grpc.http2.ping_timeout_ms", 3000);  // from gRPC 1.60 on, the default is 60 s
  // 0: no limit on keepalive pings, because the client sends no data during a stream.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetLoadBalancingPolicyName("round_robin");
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 5000);
  return arguments;
}

ResumingClient::ResumingClient(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                               RetryPolicy policy,
                               std::string api_key)
    : channels_(channels), policy_(policy), api_key_(std::move(api_key)) {
  for (const std::shared_ptr<grpc::Channel>& channel : channels) {
    stubs_.push_back(v1::GenerationService::NewStub(channel));
  }
}

grpc::Status ResumingClient::Generate(const v1::GenerateRequest& request,
                                      const OnResponse& on_response) const {
  const Clock::time_point deadline =
      Clock::now() + (request.has_timeout_ms() ? TimeoutOf(request) : kLongestTimeout);
  Progress progress(request.has_n() ? request.n() : 1);
  v1::GenerateRequest next = request;
  size_t server = 0;
  Patience patience(policy_);
  for (;;) {
    const Clock::time_point begin = Clock::now();
    const Attempt attempt = Stream(*stubs_[server], api_key_, next, on_response, progress);
    if (attempt.is_final) {
      return attempt.status;
    }
    if (progress.is_complete()) {
      return grpc::Status::OK;  // even if the stream broke after the answer's last message
    }
    auto lasted = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    if (attempt.has_brought_something) {
      patience.NoteMessage();
      lasted = milliseconds(0);
    }
    if (!IsWorthARetry(attempt.status, next.has_resume())) {
      return attempt.status;
    }
    if (!attempt.status.error_details().empty()) {  // Quire's servers always send details
      patience.NoteServer();
    }
    const std::optional<milliseconds> wait =
        IsFull(attempt.status)
            ? patience.WaitForPlace(RetryDelayOf(attempt.status).value_or(milliseconds(0)))
            : patience.WaitUnanswered(lasted);
    if (!wait.has_value()) {
      return GivenUp(attempt.status, patience);
    }
    server = (server + 1) % stubs_.size();
    SleepUntil(std::min(deadline, Clock::now() + *wait), *channels_[server]);
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "deadline: passed before the next attempt"};
    }
    if (request.has_timeout_ms()) {
      next.set_timeout_ms(left.count());
    }
    progress.FillNext(&next);
  }
}

}  // namespace quire
