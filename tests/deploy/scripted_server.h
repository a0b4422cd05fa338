// ScriptedServer answers one call of Generate after the other from a script, and remembers what was
// asked.
//
// Thread safety: safe from any thread.
#ifndef QUIRE_TESTS_DEPLOY_SCRIPTED_SERVER_H_
#define QUIRE_TESTS_DEPLOY_SCRIPTED_SERVER_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "proto/v1/generation.grpc.pb.h"

namespace quire {

class ScriptedServer final : public v1::GenerationService::Service {
 public:
  struct Call {
    std::vector<v1::GenerateResponse> responses;
    grpc::Status status;
    // Runs between the last response and the status.
    std::function<void(const grpc::ServerContext&)> before_status = nullptr;
  };

  explicit ScriptedServer(std::deque<Call> script) : script_(std::move(script)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  grpc::Status Generate(grpc::ServerContext* context,
                        const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    Call call{{}, {grpc::StatusCode::FAILED_PRECONDITION, "the script is over"}};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      requests_.push_back(*request);
      const auto key = context->client_metadata().find("authorization");
      keys_.push_back(key == context->client_metadata().end()
                          ? ""
                          : std::string(key->second.data(), key->second.size()));
      if (!script_.empty()) {
        call = script_.front();
        script_.pop_front();
      }
    }
    for (const v1::GenerateResponse& response : call.responses) {
      writer->Write(response);
      ++num_written_;
    }
    if (call.before_status != nullptr) {
      call.before_status(*context);
    }
    return call.status;
  }

  std::shared_ptr<grpc::Channel> Channel() { return server_->InProcessChannel({}); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  std::vector<v1::GenerateRequest> requests() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }
  // Returns the number of messages that gRPC has taken.
  int num_written() const { return num_written_; }
  // Returns the `authorization` of each call.
  std::vector<std::string> keys() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return keys_;
  }

 private:
  mutable std::mutex mutex_;
  std::deque<Call> script_;
  std::vector<v1::GenerateRequest> requests_;
  std::vector<std::string> keys_;
  std::atomic<int> num_written_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_DEPLOY_SCRIPTED_SERVER_H_
