#include "deploy/gateway/text_routes.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "deploy/gateway/generation.h"
#include "deploy/gateway/openai/service_bodies.h"

namespace quire {
namespace {

constexpr char kJson[] = "application/json";
constexpr std::string_view kModelPath = "/v1/models/";

absl::StatusOr<std::string> Detokenize(const ModelGate::Served& served,
                                       const HttpRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(const DetokenizeBody parsed, ParseDetokenizeBody(request.body));
  QUIRE_RETURN_IF_ERROR(CheckModelName(parsed.model, *served.info));
  QUIRE_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, served.model->tokenizer());
  const auto& ids = parsed.request.token_ids();
  const bool are_valid = std::ranges::all_of(
      ids, [&](int32_t id) { return id >= 0 && id < served.info->vocab_size(); });
  if (!are_valid) {
    return InvalidArgument("TOKEN_ID_RANGE", "tokens: must be ids of the vocabulary");
  }
  return DetokenizeAnswer(tokenizer->Decode({ids.data(), static_cast<size_t>(ids.size())},
                                            parsed.request.skip_special_tokens()));
}

// Returns each token's text as the tokenizer's file writes it.
std::vector<std::string> TextsOf(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  std::vector<std::string> texts;
  texts.reserve(tokens.size());
  for (const TokenId id : tokens) {
    texts.emplace_back(tokenizer.TokenText(id));
  }
  return texts;
}

}  // namespace

TextRoutes::TextRoutes(ModelGate& gate, GatewayMetrics& metrics, RequestPool& pool)
    : gate_(gate), metrics_(metrics), pool_(pool), created_(absl::ToUnixSeconds(absl::Now())) {}

std::vector<HttpRoute> TextRoutes::Routes() {
  std::vector<HttpRoute> routes;
  routes.push_back(Route("GET", "/v1/models", [this](const auto& served, const HttpRequest&) {
    return ModelsBody(*served.info, created_);
  }));
  routes.push_back(Route(
      "GET",
      kModelPath.data(),
      [this](const auto& served, const HttpRequest& request) { return Model(served, request); },
      /*is_prefix=*/true));
  for (const char* path : {"/tokenize", "/v1/tokenize"}) {
    routes.push_back(Route("POST", path, [this](const auto& served, const HttpRequest& request) {
      return Tokenize(served, request);
    }));
  }
  for (const char* path : {"/detokenize", "/v1/detokenize"}) {
    routes.push_back(Route("POST", path, Detokenize));
  }
  routes.push_back(
      Route("POST", "/apply-template", [this](const auto& served, const HttpRequest& request) {
        return ApplyTemplate(served, request);
      }));
  routes.push_back({.method = "GET",
                    .path = "/version",
                    .handler = [](const HttpRequest&, HttpResponder responder) {
                      responder.Answer({.body = VersionBody(Version()), .content_type = kJson});
                    }});
  for (const char* path : {"/health", "/ping", "/readyz"}) {
    routes.push_back({.method = "GET",
                      .path = path,
                      .handler =
                          [this](const HttpRequest&, HttpResponder responder) {
                            const bool is_ready = gate_.is_ready();
                            responder.Answer({.status_code = is_ready ? 200 : 503,
                                              .body = is_ready ? "ready\n" : "not ready\n"});
                          },
                      .is_open = true});
  }
  return routes;
}

HttpRoute TextRoutes::Route(const char* method, const char* path, Make make, bool is_prefix) {
  auto answer = [this, make = std::move(make)](const HttpRequest& request,
                                               HttpResponder responder) {
    const absl::StatusOr<ModelGate::Served> served = gate_.Enter();
    absl::StatusOr<std::string> body = served.ok() ? make(*served, request) : served.status();
    responder.Answer(body.ok() ? HttpResponse{.body = *std::move(body), .content_type = kJson}
                               : ErrorAnswer(body.status(), std::nullopt, OpenAiApi::kCompletions));
  };
  return {.method = method,
          .path = path,
          .handler =
              [this, answer = std::move(answer)](HttpRequest request, HttpResponder responder) {
                pool_.Post(std::move(request), std::move(responder), answer);
              },
          .is_prefix = is_prefix};
}

absl::StatusOr<std::string> TextRoutes::Model(const ModelGate::Served& served,
                                              const HttpRequest& request) {
  const std::string name = request.path.substr(kModelPath.size());
  QUIRE_RETURN_IF_ERROR(CheckModelName(name.empty() ? "?" : name, *served.info));
  return ModelBody(*served.info, name, created_);
}

absl::StatusOr<RenderedPrompt> TextRoutes::Render(const ChatModel& model, ChatPrompt chat) {
  const Instant begin = SteadyNow();
  absl::StatusOr<RenderedPrompt> prompt = model.Render(std::move(chat));
  metrics_.OnTemplate(SteadyNow() - begin);
  return prompt;
}

absl::StatusOr<std::string> TextRoutes::Tokenize(const ModelGate::Served& served,
                                                 const HttpRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(TokenizeBody parsed,
                         ParseTokenizeBody(request.body, served.model->content_format()));
  QUIRE_RETURN_IF_ERROR(CheckModelName(parsed.model, *served.info));
  const bool adds_special_tokens = parsed.request.add_special_tokens();
  std::vector<TokenId> tokens;
  if (parsed.chat.has_value()) {
    QUIRE_ASSIGN_OR_RETURN(const RenderedPrompt prompt,
                           Render(*served.model, *std::move(parsed.chat)));
    QUIRE_ASSIGN_OR_RETURN(tokens, served.model->Encode(prompt, adds_special_tokens));
  } else {
    QUIRE_ASSIGN_OR_RETURN(
        tokens,
        served.model->Encode(
            parsed.request.text(), adds_special_tokens, parsed.request.parse_special_tokens()));
  }
  std::optional<std::vector<std::string>> texts;
  if (parsed.returns_token_texts) {
    QUIRE_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, served.model->tokenizer());
    texts = TextsOf(*tokenizer, tokens);
  }
  return TokenizeAnswer(tokens, served.info->max_model_len_tokens(), texts);
}

absl::StatusOr<std::string> TextRoutes::ApplyTemplate(const ModelGate::Served& served,
                                                      const HttpRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(TokenizeBody parsed,
                         ParseApplyTemplateBody(request.body, served.model->content_format()));
  QUIRE_RETURN_IF_ERROR(CheckModelName(parsed.model, *served.info));
  QUIRE_ASSIGN_OR_RETURN(const RenderedPrompt prompt,
                         Render(*served.model, *std::move(parsed.chat)));
  return ApplyTemplateAnswer(prompt.text);
}

}  // namespace quire
