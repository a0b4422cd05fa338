// AsyncResumingClient streams many answers on one thread, and resumes each one as ResumingClient
// does. Start makes a stream. The stream's handler gets one message for each call of Next().
//
// Back-pressure: the client takes no message from gRPC that Next() has not asked for. If a handler
// does not ask, gRPC's flow control stops the server. A handler learns that its stream has failed
// only after it calls Next() again.
//
// Thread safety: safe from any thread. The client's thread calls all handlers, one at a time, so a
// handler must not block.
#ifndef QUIRE_DEPLOY_CLIENTS_CPP_ASYNC_RESUMING_CLIENT_H_
#define QUIRE_DEPLOY_CLIENTS_CPP_ASYNC_RESUMING_CLIENT_H_

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/status.h>

#include "proto/v1/generation.grpc.pb.h"

#include "deploy/clients/cpp/retry_policy.h"

namespace quire {

class AsyncResumingClient {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // Receives the message that Next() has asked for.
    virtual void OnResponse(const v1::GenerateResponse& response) = 0;
    // Receives the end of the stream, once, as the answer to Next() or after Cancel(). The status
    // is that of ResumingClient::Generate; after a cancel it is CANCELLED. The handler gets no call
    // after it.
    virtual void OnDone(const grpc::Status& status) = 0;
  };

  // A running stream. Calls after OnDone have no effect, even if the client is gone.
  class Stream {
   public:
    virtual ~Stream() = default;
    // Asks for one message. One call of OnResponse or OnDone answers. The first call of Next()
    // sends the request, and timeout_ms counts from this call on. Has no effect while an answer is
    // outstanding.
    virtual void Next() = 0;
    // Ends the call to the server, or the wait for the next attempt, at once; then OnDone follows.
    // An OnResponse that has begun may still be running when Cancel() returns.
    virtual void Cancel() = 0;
  };

  // Returns a new channel to one server, made with ClientChannelArguments, so that no other channel
  // shares its connections. Must not block.
  using Dial = std::function<std::shared_ptr<grpc::Channel>()>;

  // servers: one for each replica, at least one. After each failure a stream goes on at the next
  // server. The client dials a further channel to a server if each of the server's channels has 100
  // streams.
  // on_resume: called before each attempt that continues the answer of an earlier attempt.
  explicit AsyncResumingClient(std::vector<Dial> servers,
                               RetryPolicy policy = {},
                               std::function<void()> on_resume = nullptr);

  // Cancels all streams, and returns when each handler has had its OnDone. REQUIRES: the caller is
  // no handler, because the client's thread cannot wait for itself; no other thread is in Start.
  ~AsyncResumingClient();

  AsyncResumingClient(const AsyncResumingClient&) = delete;
  AsyncResumingClient& operator=(const AsyncResumingClient&) = delete;

  // Makes a stream, which sends the request at its first Next(). Dropping the returned handle
  // cancels the stream. The handler may own the returned Stream and drop it even in a callback:
  // the client keeps the handler alive until OnDone has returned.
  // api_key: as for ResumingClient.
  std::shared_ptr<Stream> Start(const v1::GenerateRequest& request,
                                const std::string& api_key,
                                std::shared_ptr<Handler> handler);

 private:
  class Call;
  struct Connection {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::GenerationService::Stub> stub;
    int num_calls = 0;
  };
  struct Server {
    Dial dial;
    std::list<Connection> connections;
  };

  // Returns the server's connection with the fewest calls, or a new one if all are full. Adds one
  // to that connection's count of calls.
  Connection* Connect(size_t server);
  void Disconnect(size_t server, Connection* connection);
  void Remove(const std::shared_ptr<Call>& call);
  void Run();

  const RetryPolicy policy_;
  const std::function<void()> on_resume_;  // may be null
  std::mutex mutex_;                       // guards the next three members
  std::vector<Server> servers_;
  std::unordered_set<std::shared_ptr<Call>> calls_;
  bool is_closing_ = false;
  grpc::CompletionQueue queue_;  // each event's tag is the Call
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLIENTS_CPP_ASYNC_RESUMING_CLIENT_H_
