#include "worker/rpc/worker_server.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "common/base/error.h"
#include "common/wire/channel.h"

namespace quire {
namespace {

// For the last answers to leave, and for peers to see why their streams end.
constexpr std::chrono::milliseconds kShutdownGrace(500);

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(const Address& address,
                                                                  WorkerService& service) {
  std::unique_ptr<WorkerServer> server(new WorkerServer(address, service));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  ConfigureWorkerServer(builder);
  int port = 0;
  builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return Error(absl::StatusCode::kUnavailable,
                 "LISTEN",
                 absl::StrCat("--listen: cannot listen on ", address.ToString()));
  }
  if (!address.is_unix()) {
    server->address_.port = port;
  }
  return server;
}

WorkerServer::~WorkerServer() { Shutdown(); }

void WorkerServer::Shutdown() {
  if (server_ == nullptr) {
    return;
  }
  service_.Stop();
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  server_->Wait();
  server_.reset();
}

}  // namespace quire
