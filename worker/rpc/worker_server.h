// WorkerServer listens for a scheduler and serves one WorkerService on its address, and beside it
// grpc.health.v1 for probes: "liveness" from the start on, "" from SetReady on.
//
// Thread safety: one caller at a time.
// Errors:        kUnavailable, reason LISTEN, when the address cannot be bound.
#ifndef QUIRE_WORKER_RPC_WORKER_SERVER_H_
#define QUIRE_WORKER_RPC_WORKER_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include <grpcpp/server.h>

#include "common/metrics/registry.h"
#include "common/wire/address.h"
#include "common/wire/listener.h"
#include "common/wire/tls_files.h"
#include "worker/rpc/worker_service.h"

namespace quire {

class WorkerServer {
 public:
  // Serves at once, without TLS files in plain text. Port 0 takes any free one. The service must
  // outlive the server, and so must the registry, which counts calls; null: nobody does.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(
      const Address& address,
      WorkerService& service,
      std::shared_ptr<TlsFiles> tls = nullptr,
      MetricsRegistry* registry = nullptr);

  // Shuts down.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  // With the port that was taken.
  const Address& address() const { return listener_->address(); }

  // The model is loaded. REQUIRES: not shut down.
  void SetReady();

  // Stops the service, then ends all connections.
  void Shutdown();

 private:
  explicit WorkerServer(WorkerService& service) : service_(service) {}

  WorkerService& service_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_WORKER_SERVER_H_
