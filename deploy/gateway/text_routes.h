// TextRoutes answers the routes that generate nothing: /v1/models, /tokenize, /detokenize,
// /apply-template, /version, /health, /ping and /readyz.
//
// Thread safety: any thread. Handlers run on the HTTP server's thread and do not wait, because the
//                pool's threads do the work.
#ifndef QUIRE_DEPLOY_GATEWAY_TEXT_ROUTES_H_
#define QUIRE_DEPLOY_GATEWAY_TEXT_ROUTES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/http/http_route.h"
#include "deploy/gateway/gateway_metrics.h"
#include "deploy/gateway/model_gate.h"
#include "deploy/gateway/request_pool.h"

namespace quire {

class TextRoutes {
 public:
  // The referenced objects must outlive this object. This object must outlive the pool's tasks.
  TextRoutes(ModelGate& gate, GatewayMetrics& metrics, RequestPool& pool);

  std::vector<HttpRoute> Routes();

 private:
  // Makes the body of an answer.
  using Make =
      std::function<absl::StatusOr<std::string>(const ModelGate::Served&, const HttpRequest&)>;

  // Returns a route that makes its answer on a thread of the pool.
  HttpRoute Route(const char* method, const char* path, Make make, bool is_prefix = false);
  absl::StatusOr<RenderedPrompt> Render(const ChatModel& model, ChatPrompt chat);

  absl::StatusOr<std::string> Model(const ModelGate::Served& served, const HttpRequest& request);
  absl::StatusOr<std::string> Tokenize(const ModelGate::Served& served, const HttpRequest& request);
  absl::StatusOr<std::string> ApplyTemplate(const ModelGate::Served& served,
                                            const HttpRequest& request);

  ModelGate& gate_;
  GatewayMetrics& metrics_;
  RequestPool& pool_;
  const int64_t created_;  // creation time of the model in /v1/models: seconds since 1970
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEXT_ROUTES_H_
