// The worker's HTTP port: metrics for Prometheus, and health for probes.
//
//   /metrics   the metrics of the registry, of the worker's state and of the process
//   /livez     503 while the worker is not live (WorkerReporter::is_live) and must be restarted
//   /readyz    503 while the worker is not live, while the model loads, and while a scheduler
//              refuses the worker
//   /healthz   the same page as /readyz
//
// Thread safety: one caller; pages are made on the server's thread.
#ifndef QUIRE_WORKER_WORKER_HTTP_H_
#define QUIRE_WORKER_WORKER_HTTP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "common/http/http_server.h"
#include "common/metrics/registry.h"
#include "worker/rpc/worker_progress.h"
#include "worker/rpc/worker_service.h"
#include "worker/worker_config.h"

namespace quire {

// `backend`: KernelBackend::name. Service, progress and registry must outlive the server. Errors:
// kUnavailable, reason HTTP_BIND, if the address cannot be bound. REQUIRES: config.http has a
// value, and nothing is added to the registry afterwards.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeWorkerHttp(const WorkerConfig& config,
                                                            const std::string& backend,
                                                            const WorkerService& service,
                                                            const WorkerProgress& progress,
                                                            MetricsRegistry& registry);

}  // namespace quire

#endif  // QUIRE_WORKER_WORKER_HTTP_H_
