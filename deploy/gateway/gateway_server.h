// GatewayServer is the whole gateway process without its command line:
//
//   HTTP clients ── HttpServer ─┬─ GenerationRoutes ── AsyncResumingClient ── schedulers
//                               ├─ TextRoutes ── ModelGate ── SchedulerWatch ── schedulers
//                               └─ OperatorPages ── HttpClient ── a scheduler's pages
//   Prometheus, probes ── pages (a port of their own) ── MetricsRegistry
//
// Thread safety: one thread starts, drains and destroys.
#ifndef QUIRE_DEPLOY_GATEWAY_GATEWAY_SERVER_H_
#define QUIRE_DEPLOY_GATEWAY_GATEWAY_SERVER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/clock.h"
#include "common/http/http_server.h"
#include "common/metrics/registry.h"
#include "deploy/clients/cpp/async_resuming_client.h"
#include "deploy/gateway/chat_model.h"
#include "deploy/gateway/gateway_config.h"
#include "deploy/gateway/gateway_metrics.h"
#include "deploy/gateway/generation_routes.h"
#include "deploy/gateway/model_gate.h"
#include "deploy/gateway/operator_pages.h"
#include "deploy/gateway/origin_check.h"
#include "deploy/gateway/request_pool.h"
#include "deploy/gateway/scheduler_watch.h"
#include "deploy/gateway/text_routes.h"

namespace quire {

class GatewayServer {
 public:
  // Listens. Clients can connect from now on; their requests wait for Open. Errors: those of
  // HttpServer::Start.
  static absl::StatusOr<std::unique_ptr<GatewayServer>> Start(const GatewayConfig& config);
  // Ends all requests.
  ~GatewayServer();

  // Waits until the schedulers have been asked once, at most 5 s, and then lets requests begin.
  // Call once.
  void Open(std::unique_ptr<ChatModel> model);

  // "HOST:PORT".
  std::string address() const;
  std::string pages_address() const;  // empty: no such port
  // True if the model is loaded and a scheduler is ready.
  bool is_ready() const { return gate_.is_ready(); }

  // Accepts no more connections, and lets running requests finish. Call once.
  void BeginDrain();
  // Ends the requests that still run. Each is answered 503, or its stream ends with an error.
  void EndRequests();
  // True if no connection is left.
  bool is_drained() const { return is_drained_; }

 private:
  explicit GatewayServer(GatewayConfig config);

  absl::Status Listen();
  std::vector<HttpRoute> Routes();
  // watch_ calls this after each round of questions. Makes the HTTP server's thread note the time,
  // for IsLive. Returns free memory to the system.
  void Beat();
  // Returns false if the HTTP server's thread or watch_'s thread hangs.
  bool IsLive() const;

  const GatewayConfig config_;
  MetricsRegistry registry_;          // the gateway's own metrics
  MetricsRegistry process_registry_;  // metrics that every process has
  GatewayMetrics metrics_;
  std::unique_ptr<AsyncResumingClient> client_;
  SchedulerWatch watch_;
  ModelGate gate_;
  Generation::Shared generations_{.metrics = metrics_, .pool = pool_};  // outlives pool_'s tasks
  RequestPool pool_;
  GenerationRoutes generation_routes_;
  TextRoutes text_routes_;
  const OriginCheck origin_check_;
  std::unique_ptr<OperatorPages> operator_pages_;  // null: not served
  std::atomic<Instant> last_beat_;
  std::atomic<bool> is_drained_ = false;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<HttpServer> pages_;  // null: no such port
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_GATEWAY_SERVER_H_
