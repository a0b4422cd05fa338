// OpenAiLoad is the LoadBackend for OpenAI's HTTP API. Each running request has its own connection;
// one thread serves all connections. A record's arrivals are the times of events with text. The
// token counts are the server's; if the server reports none, each arrival is an output token.
//
// Thread safety: Start: one thread at a time. The load's own thread records and calls `done`.
#ifndef QUIRE_DEPLOY_CLI_OPENAI_LOAD_H_
#define QUIRE_DEPLOY_CLI_OPENAI_LOAD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/v1/generation.pb.h"

#include "common/http/http_client_pool.h"
#include "deploy/cli/load_generator.h"
#include "deploy/cli/openai_server.h"

namespace quire {

struct OpenAiTarget {
  OpenAiServer server;
  std::string endpoint;
  std::string model;
  bool is_chat = false;
};

// Returns the request's body, with the fields that `vllm bench serve` sends. In a chat the prompt
// is the user's message. REQUIRES: the prompt is a text if is_chat.
std::string OpenAiBody(const v1::GenerateRequest& request, const OpenAiTarget& target);

class OpenAiLoad : public LoadBackend {
 public:
  // requests: must outlive this object. timeout_ms: as in LoadOptions.
  OpenAiLoad(OpenAiTarget target,
             const std::vector<v1::GenerateRequest>& requests,
             int64_t timeout_ms);

  void Start(size_t index, RequestRecord& record, std::function<void()> done) override;

 private:
  const OpenAiTarget target_;
  const std::vector<v1::GenerateRequest>& requests_;
  const int64_t timeout_ns_;
  HttpClientPool pool_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_OPENAI_LOAD_H_
