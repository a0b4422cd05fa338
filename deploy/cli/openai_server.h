// Access to a server of OpenAI's HTTP API: Quire's gateway, vLLM, llama-server, OpenAI.
//
// Thread safety: free functions, safe from any thread while none calls setenv.
#ifndef QUIRE_DEPLOY_CLI_OPENAI_SERVER_H_
#define QUIRE_DEPLOY_CLI_OPENAI_SERVER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "common/http/http_client.h"
#include "common/http/http_message.h"
#include "deploy/cli/server_access.h"

namespace quire {

struct OpenAiServer {
  HttpClientOptions client;
  std::string path;  // before each target; empty, or begins with '/' and does not end with it
  HttpHeaders headers;
};

// base_url: http://HOST[:PORT][/PATH], https://... or unix:PATH. For https, trusts the authorities
// of `access`, or the system's if `access` names none. The API key comes from ApiKeyOf, else from
// the environment variable OPENAI_API_KEY. Errors: kInvalidArgument, also if a key would go to
// another machine without TLS.
absl::StatusOr<OpenAiServer> OpenAiServerOf(const std::string& base_url,
                                            const ServerAccess& access);

struct OpenAiModel {
  std::string name;
  std::optional<int32_t> vocab_size;  // only llama-server reports it
};

// Returns the first model that the server lists. Errors: those of HttpClient; those of
// StatusOfHttpError; kInternal OPENAI_ANSWER if the answer lists no model.
absl::StatusOr<OpenAiModel> AskModel(HttpClient& client, const OpenAiServer& server);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_OPENAI_SERVER_H_
