#include "deploy/clients/cpp/async_resuming_client.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/async_stream.h>

#include "deploy/clients/cpp/resume_state.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

// Upper bound on the streams of one connection. Servers take 128; gRPC holds back further streams
// until one ends. The margin is for streams that have ended at the client, but not yet at the
// server.
constexpr int kMaxCallsPerConnection = 100;

}  // namespace

// One stream. At most one operation is outstanding, and pending_ names it, so an event needs no tag
// other than the Call.
class AsyncResumingClient::Call final : public Stream, public std::enable_shared_from_this<Call> {
 public:
  Call(AsyncResumingClient& client,
       const v1::GenerateRequest& request,
       std::string api_key,
       std::shared_ptr<Handler> handler)
      : client_(client),
        api_key_(std::move(api_key)),
        handler_(std::move(handler)),
        state_(request, client.policy_, client.servers_.size()) {}

  void Next() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (pending_ != Pending::kNothing) {
      return;
    }
    if (attempt_.has_value()) {
      Read();
    } else {
      begin_ = Clock::now();
      WaitForAttempt(Clock::duration(0));
    }
  }

  void Cancel() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (pending_ == Pending::kDone) {
      return;
    }
    state_.Cancel();
    if (attempt_.has_value()) {
      attempt_->context.TryCancel();  // ends the pending operation
    }
    if (pending_ == Pending::kAlarm) {
      alarm_.Cancel();
    } else if (pending_ == Pending::kNothing && attempt_.has_value()) {
      Finish();
    } else if (pending_ == Pending::kNothing) {
      SetAlarm(Clock::duration(0));
    }
  }

  // Takes the result of the pending operation, on the client's thread.
  void OnEvent(bool ok) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::optional<grpc::Status> end;
    switch (pending_) {
      case Pending::kAlarm:
        end = BeginAttempt();
        break;
      case Pending::kStart:
        Read();
        break;
      case Pending::kRead:
        if (ok && state_.Take(&response_)) {
          // OnResponse may call Next(), which reads into response_ again.
          v1::GenerateResponse response;
          response.Swap(&response_);
          pending_ = Pending::kNothing;
          lock.unlock();
          handler_->OnResponse(response);
          return;
        }
        if (ok) {
          attempt_->context.TryCancel();
        }
        Finish();
        break;
      case Pending::kFinish:
        end = EndAttempt();
        break;
      case Pending::kNothing:
      case Pending::kDone:
        break;
    }
    if (end.has_value()) {
      pending_ = Pending::kDone;
      lock.unlock();
      handler_->OnDone(*end);
      handler_.reset();
      client_.Remove(shared_from_this());
    }
  }

 private:
  enum class Pending { kNothing, kAlarm, kStart, kRead, kFinish, kDone };

  struct Attempt {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateResponse>> reader;
    grpc::Status status;
  };

  // The functions below require mutex_.

  // If `wait` is 0, sets a deadline long ago instead of now, because gRPC would round now up to a
  // millisecond.
  void SetAlarm(Clock::duration wait) {
    pending_ = Pending::kAlarm;
    const auto deadline = wait > Clock::duration(0) ? std::chrono::system_clock::now() + wait
                                                    : std::chrono::system_clock::time_point();
    alarm_.Set(&client_.queue_, deadline, this);
  }

  // Sets the alarm for the next attempt. Meanwhile the client's thread waits on the completion
  // queue, and gRPC uses that thread to connect the channel.
  void WaitForAttempt(Clock::duration wait) {
    server_ = state_.server();
    connection_ = client_.Connect(server_);
    connection_->channel->GetState(/*try_to_connect=*/true);
    SetAlarm(wait);
  }

  void LeaveConnection() {
    attempt_.reset();
    if (connection_ != nullptr) {
      client_.Disconnect(server_, std::exchange(connection_, nullptr));
    }
  }

  // Begins an attempt and returns nullopt. Returns the stream's final status if no attempt can
  // begin: the request was cancelled, its time is over, or the API key is not valid.
  std::optional<grpc::Status> BeginAttempt() {
    grpc::Status status = state_.BeginAttempt(Clock::now() - begin_);
    if (status.ok()) {
      attempt_.emplace();
      status = PrepareCall(state_.request(), api_key_, &attempt_->context);
    }
    if (!status.ok()) {
      LeaveConnection();
      return status;
    }
    if (client_.on_resume_ != nullptr && state_.request().resume().sequences_size() > 0) {
      client_.on_resume_();
    }
    pending_ = Pending::kStart;
    attempt_->reader = connection_->stub->AsyncGenerate(
        &attempt_->context, state_.request(), &client_.queue_, this);
    return std::nullopt;
  }

  void Read() {
    pending_ = Pending::kRead;
    attempt_->reader->Read(&response_, this);
  }

  void Finish() {
    pending_ = Pending::kFinish;
    attempt_->reader->Finish(&attempt_->status, this);
  }

  // Ends the attempt. Returns the stream's final status, or nullopt if another attempt follows.
  std::optional<grpc::Status> EndAttempt() {
    ResumeState::Next next = state_.EndAttempt(Clock::now() - begin_, attempt_->status);
    LeaveConnection();
    if (!next.end.has_value()) {
      WaitForAttempt(next.wait);
    }
    return std::move(next.end);
  }

  AsyncResumingClient& client_;  // may be destroyed after kDone
  const std::string api_key_;
  std::shared_ptr<Handler> handler_;  // only the client's thread uses it

  std::mutex mutex_;  // guards the members below; locked before the client's mutex
  Pending pending_ = Pending::kNothing;
  ResumeState state_;
  Clock::time_point begin_;  // time of the first Next()
  size_t server_ = 0;
  Connection* connection_ = nullptr;  // null outside of waits and attempts
  std::optional<Attempt> attempt_;
  v1::GenerateResponse response_;
  grpc::Alarm alarm_;
};

AsyncResumingClient::AsyncResumingClient(std::vector<Dial> servers,
                                         RetryPolicy policy,
                                         std::function<void()> on_resume)
    : policy_(policy), on_resume_(std::move(on_resume)) {
  for (Dial& dial : servers) {
    servers_.push_back({std::move(dial), {}});
  }
  thread_ = std::thread(&AsyncResumingClient::Run, this);
}

AsyncResumingClient::~AsyncResumingClient() {
  std::unique_lock<std::mutex> lock(mutex_);
  is_closing_ = true;
  if (calls_.empty()) {
    queue_.Shutdown();
  }
  const std::unordered_set<std::shared_ptr<Call>> calls = calls_;
  lock.unlock();
  for (const std::shared_ptr<Call>& call : calls) {
    call->Cancel();
  }
  thread_.join();
}

std::shared_ptr<AsyncResumingClient::Stream> AsyncResumingClient::Start(
    const v1::GenerateRequest& request,
    const std::string& api_key,
    std::shared_ptr<Handler> handler) {
  const auto call = std::make_shared<Call>(*this, request, api_key, std::move(handler));
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.insert(call);
  return {call.get(), [call](Stream* stream) { stream->Cancel(); }};
}

AsyncResumingClient::Connection* AsyncResumingClient::Connect(size_t server) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::list<Connection>& connections = servers_[server].connections;
  auto best = std::min_element(
      connections.begin(), connections.end(), [](const Connection& a, const Connection& b) {
        return a.num_calls < b.num_calls;
      });
  if (best == connections.end() || best->num_calls >= kMaxCallsPerConnection) {
    best = connections.emplace(connections.end());
    best->channel = servers_[server].dial();
    best->stub = v1::GenerationService::NewStub(best->channel);
  }
  ++best->num_calls;
  return &*best;
}

// Notes that a call of the connection has ended. Closes the connection if it has no other call,
// unless it is the server's only connection.
void AsyncResumingClient::Disconnect(size_t server, Connection* connection) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::list<Connection>& connections = servers_[server].connections;
  if (--connection->num_calls == 0 && connections.size() > 1) {
    connections.remove_if([&](const Connection& each) { return &each == connection; });
  }
}

void AsyncResumingClient::Remove(const std::shared_ptr<Call>& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.erase(call);
  if (is_closing_ && calls_.empty()) {
    queue_.Shutdown();
  }
}

void AsyncResumingClient::Run() {
  void* tag = nullptr;
  for (bool ok = false; queue_.Next(&tag, &ok);) {
    static_cast<Call*>(tag)->OnEvent(ok);
  }
}

}  // namespace quire
