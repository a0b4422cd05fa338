// What the tests of AsyncResumingClient share: a handler, channels, and a bounded wait.
#ifndef QUIRE_TESTS_DEPLOY_COLLECTOR_H_
#define QUIRE_TESTS_DEPLOY_COLLECTOR_H_

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <grpcpp/create_channel.h>

#include "deploy/clients/cpp/async_resuming_client.h"
#include "deploy/clients/cpp/resuming_client.h"
#include "tests/deploy/scripted_server.h"

namespace quire {

// Bounds a wait of a test whose event does not come.
inline constexpr std::chrono::seconds kTooLong(60);

// Waits at most kTooLong for the condition.
template <typename Condition>
bool WaitFor(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kTooLong;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline constexpr RetryPolicy kFast = {.max_unanswered = std::chrono::hours(1),
                                      .max_unanswered_at_first = std::nullopt,
                                      .first_wait = std::chrono::milliseconds(1),
                                      .max_wait = std::chrono::milliseconds(2),
                                      .max_wait_for_a_place = std::chrono::milliseconds(20)};

inline AsyncResumingClient::Dial DialOf(ScriptedServer& server) {
  return [&server] { return server.Channel(); };
}

inline AsyncResumingClient::Dial DialOf(const std::string& address) {
  return [address] {
    return grpc::CreateCustomChannel(
        address, grpc::InsecureChannelCredentials(), ClientChannelArguments());
  };
}

// Calls a function for each message; the function asks for the next message or cancels. A second
// OnDone throws, which ends the test.
class Collector final : public AsyncResumingClient::Handler {
 public:
  using OnMessage =
      std::function<void(AsyncResumingClient::Stream& stream, const v1::GenerateResponse&)>;

  explicit Collector(OnMessage on_message) : on_message_(std::move(on_message)) {}

  void OnResponse(const v1::GenerateResponse& response) override { on_message_(*stream, response); }
  void OnDone(const grpc::Status& status) override { done_.set_value(status); }

  // Waits at most kTooLong. Returns UNKNOWN if the stream has not ended by then.
  grpc::Status End() {
    return end_.wait_for(kTooLong) == std::future_status::ready
               ? end_.get()
               : grpc::Status(grpc::StatusCode::UNKNOWN, "the stream does not end");
  }

  std::shared_ptr<AsyncResumingClient::Stream> stream;  // set before the first Next()

 private:
  OnMessage on_message_;
  std::promise<grpc::Status> done_;
  std::future<grpc::Status> end_ = done_.get_future();
};

// Starts a stream whose handler is a Collector, and asks for nothing yet.
inline std::shared_ptr<Collector> Collect(AsyncResumingClient& client,
                                          const v1::GenerateRequest& request,
                                          const std::string& api_key,
                                          Collector::OnMessage on_message) {
  auto collector = std::make_shared<Collector>(std::move(on_message));
  collector->stream = client.Start(request, api_key, collector);
  return collector;
}

}  // namespace quire

#endif  // QUIRE_TESTS_DEPLOY_COLLECTOR_H_
