// CrowdServer answers any number of calls at once, without a thread for each, on a port with the
// limits of a real server: 128 streams a connection.
#ifndef QUIRE_TESTS_DEPLOY_CROWD_SERVER_H_
#define QUIRE_TESTS_DEPLOY_CROWD_SERVER_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "proto/v1/generation.grpc.pb.h"

#include "common/wire/channel.h"

namespace quire {

struct CrowdAnswer {
  std::vector<v1::GenerateResponse> responses;
  grpc::Status status;
  bool holds = false;  // the stream stays open after the responses, until the client cancels
};

// Writes one answer, and deletes itself at the end of the call.
class CrowdReactor final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit CrowdReactor(CrowdAnswer answer) : answer_(std::move(answer)) {}

  void Begin() {
    GoOn([this] { has_begun_ = true; });
  }
  void OnWriteDone(bool ok) override {
    GoOn([this, ok] {
      is_writing_ = false;
      is_cancelled_ |= !ok;
    });
  }
  void OnCancel() override {
    GoOn([this] { is_cancelled_ = true; });
  }
  void OnDone() override { delete this; }

 private:
  void GoOn(const std::function<void()>& note) {
    std::unique_lock<std::mutex> lock(mutex_);
    note();
    if (is_writing_ || has_ended_ || !(has_begun_ || is_cancelled_)) {
      return;
    }
    if (!is_cancelled_ && num_written_ < answer_.responses.size()) {
      is_writing_ = true;
      const v1::GenerateResponse& response = answer_.responses[num_written_++];
      lock.unlock();
      StartWrite(&response);
    } else if (is_cancelled_ || !answer_.holds) {
      has_ended_ = true;
      const grpc::Status status = answer_.status;
      lock.unlock();
      Finish(status);
    }
  }

  const CrowdAnswer answer_;
  std::mutex mutex_;
  size_t num_written_ = 0;
  bool has_begun_ = false;
  bool is_writing_ = false;
  bool is_cancelled_ = false;
  bool has_ended_ = false;
};

class CrowdServer final : public v1::GenerationService::CallbackService {
 public:
  using Answerer =
      std::function<CrowdAnswer(const v1::GenerateRequest& request, const std::string& peer)>;

  // crowd_size: the server answers no call before so many calls have come. Further calls are
  // answered at once.
  CrowdServer(size_t crowd_size, Answerer answerer)
      : crowd_size_(crowd_size), answerer_(std::move(answerer)) {
    grpc::ServerBuilder builder;
    ConfigurePublicServer(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    auto* reactor = new CrowdReactor(answerer_(*request, context->peer()));
    std::vector<CrowdReactor*> begins;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      crowd_.push_back(reactor);
      if (num_calls_++ < crowd_size_) {
        ++calls_of_peer_[context->peer()];
      }
      if (num_calls_ >= crowd_size_) {
        begins.swap(crowd_);
      }
    }
    for (CrowdReactor* each : begins) {
      each->Begin();
    }
    return reactor;
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Returns how many calls of the crowd came over each connection.
  std::map<std::string, int> calls_of_peer() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return calls_of_peer_;
  }

 private:
  const size_t crowd_size_;
  const Answerer answerer_;
  mutable std::mutex mutex_;
  std::vector<CrowdReactor*> crowd_;
  size_t num_calls_ = 0;
  std::map<std::string, int> calls_of_peer_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_DEPLOY_CROWD_SERVER_H_
