// WorkerServer serves one WorkerService on its address, and grpc.health.v1 for probes. The health
// service "liveness" is SERVING from the start. The health service "" is SERVING after SetReady,
// while the worker is ready.
//
// Thread safety: one caller at a time.
// Errors:        kUnavailable, reason LISTEN, if the address cannot be bound.
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
  // Begins to serve at once, in plain text if tls is null. Port 0 takes any free port. The registry
  // counts calls; if it is null, calls are not counted. The service and the registry must outlive
  // the server.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(
      const Address& address,
      WorkerService& service,
      std::shared_ptr<TlsFiles> tls = nullptr,
      MetricsRegistry* registry = nullptr);

  // Calls Shutdown.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  // The bound address, with its actual port.
  const Address& address() const { return listener_->address(); }

  // Sets the state of health service "" to SERVING. From then on the state follows
  // WorkerService::is_ready. REQUIRES: the model is loaded; Shutdown was not called.
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
