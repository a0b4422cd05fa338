// GenerationRoutes answers POST /v1/completions and POST /v1/chat/completions.
//
// The pool's threads parse bodies, render templates and tokenize texts, so an expensive request
// delays no running stream.
//
// Thread safety: any thread. Handlers: the HTTP server's thread; they do not wait.
#ifndef QUIRE_DEPLOY_GATEWAY_GENERATION_ROUTES_H_
#define QUIRE_DEPLOY_GATEWAY_GENERATION_ROUTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/http/http_route.h"
#include "deploy/clients/cpp/async_resuming_client.h"
#include "deploy/gateway/gateway_metrics.h"
#include "deploy/gateway/generation.h"
#include "deploy/gateway/model_gate.h"
#include "deploy/gateway/openai/answer_options.h"
#include "deploy/gateway/openai/error_body.h"
#include "deploy/gateway/request_pool.h"

namespace quire {

class GenerationRoutes {
 public:
  // forwards_api_keys: true if the schedulers may see clients' API keys. The referenced objects
  // must outlive this object. This object must outlive the pool's tasks.
  GenerationRoutes(AsyncResumingClient& client,
                   ModelGate& gate,
                   Generation::Shared& shared,
                   bool forwards_api_keys);

  std::vector<HttpRoute> Routes();

 private:
  // A client's request as the scheduler takes it.
  struct Prepared {
    std::vector<v1::GenerateRequest> requests;  // one for each prompt
    AnswerOptions options;
  };

  HttpRoute Route(const char* path, OpenAiApi api);
  void Answer(OpenAiApi api, const HttpRequest& request, HttpResponder responder);
  absl::StatusOr<Prepared> PrepareCompletion(const ModelGate::Served& served,
                                             const std::string& body,
                                             const std::string& request_id);
  absl::StatusOr<Prepared> PrepareChat(const ModelGate::Served& served,
                                       const std::string& body,
                                       const std::string& request_id);

  AsyncResumingClient& client_;
  ModelGate& gate_;
  Generation::Shared& shared_;
  const bool forwards_api_keys_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_GENERATION_ROUTES_H_
