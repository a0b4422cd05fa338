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

absl::Status CheckBind(const WorkerServerOptions& options) {
  if (options.allow_insecure_bind || options.address.is_local()) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kPermissionDenied,
               "INSECURE_BIND",
               "--listen: other machines reach this address and the connection is not encrypted; "
               "use a loopback address or a Unix socket, or give --allow-insecure-bind");
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(
    const WorkerServerOptions& options, WorkerService& service) {
  absl::Status bind = CheckBind(options);
  if (!bind.ok()) {
    return bind;
  }
  std::unique_ptr<WorkerServer> server(new WorkerServer(options.address, service));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  ConfigureWorkerServer(builder);
  int port = 0;
  builder.AddListeningPort(options.address.ToString(), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return Error(absl::StatusCode::kUnavailable,
                 "LISTEN",
                 absl::StrCat("--listen: cannot listen on ", options.address.ToString()));
  }
  if (!options.address.is_unix()) {
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
