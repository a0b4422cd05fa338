// GatewayMetrics sets the gateway's metrics. common/metrics/metric_names.h has their names and
// meanings.
//
// Thread safety: OnEvent: the HTTP server's thread; all other methods: any.
#ifndef QUIRE_DEPLOY_GATEWAY_GATEWAY_METRICS_H_
#define QUIRE_DEPLOY_GATEWAY_GATEWAY_METRICS_H_

#include <cstdint>
#include <string>

#include "common/http/http_server.h"
#include "common/metrics/registry.h"

namespace quire {

class GatewayMetrics {
 public:
  explicit GatewayMetrics(MetricsRegistry& registry);

  void OnEvent(const HttpEvent& event);
  void OnStreamBegin() { streams_.Increment(); }
  void OnStreamEnd() { streams_.Decrement(); }
  void OnTemplate(int64_t elapsed_ns);
  void OnResume() { resumed_.Increment(); }

 private:
  MetricsRegistry& registry_;
  prometheus::Gauge& streams_;
  prometheus::Counter& resumed_;
  prometheus::Histogram& template_seconds_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_GATEWAY_METRICS_H_
