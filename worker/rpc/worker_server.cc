#include "worker/rpc/worker_server.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/wire/call_metrics.h"
#include "common/wire/channel.h"
#include "common/wire/credentials.h"

namespace quire {
namespace {

// Time for the last answers to be sent, and for peers to read why their streams end.
constexpr std::chrono::milliseconds kShutdownGrace(500);

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(const Address& address,
                                                                  WorkerService& service,
                                                                  std::shared_ptr<TlsFiles> tls,
                                                                  MetricsRegistry* registry) {
  std::unique_ptr<WorkerServer> server(new WorkerServer(service));
  absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Bind(address);
  if (!listener.ok()) {
    return Error(absl::StatusCode::kUnavailable,
                 "LISTEN",
                 absl::StrCat("--listen: ", listener.status().message()));
  }
  server->listener_ = *std::move(listener);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  ConfigureWorkerServer(builder);
  if (registry != nullptr) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
    creators.push_back(std::make_unique<CallMetrics>(registry));
    builder.experimental().SetInterceptorCreators(std::move(creators));
  }
  server->listener_->AddTo(builder, MakeServerCredentials(std::move(tls)));
  builder.RegisterService(&service);
  server->server_ = builder.BuildAndStart();
  // BuildAndStart cannot fail, since the builder binds no port itself.
  QUIRE_CHECK(server->server_ != nullptr);
  grpc::HealthCheckServiceInterface* health = server->server_->GetHealthCheckService();
  health->SetServingStatus("", false);
  health->SetServingStatus("liveness", true);
  server->listener_->Start();
  return server;
}

void WorkerServer::SetReady() {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  health->SetServingStatus("", true);
  // Sets a status only when it changes, because each call is sent to all callers of Watch.
  service_.OnReadiness([health, was_ready = std::make_shared<bool>(true)](bool is_ready) {
    if (is_ready != std::exchange(*was_ready, is_ready)) {
      health->SetServingStatus("", is_ready);
    }
  });
}

WorkerServer::~WorkerServer() { Shutdown(); }

void WorkerServer::Shutdown() {
  if (server_ == nullptr) {
    return;
  }
  listener_->Stop();
  service_.Stop();
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  server_->Wait();
  server_.reset();
}

}  // namespace quire
