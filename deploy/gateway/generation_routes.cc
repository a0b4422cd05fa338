#include "deploy/gateway/generation_routes.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "deploy/gateway/generation.h"
#include "deploy/gateway/openai/chat_request.h"
#include "deploy/gateway/openai/chat_response.h"
#include "deploy/gateway/openai/completion_request.h"
#include "deploy/gateway/openai/completion_response.h"
#include "deploy/gateway/prompt_list.h"
#include "deploy/gateway/request_identity.h"

namespace quire {
namespace {

// Adds the prompts' texts and token ids that the answer repeats. The scheduler has the same
// tokenizer, so it computes the same ids from a text.
absl::Status CompleteEchoes(const ChatModel& model,
                            const std::vector<v1::GenerateRequest>& requests,
                            AnswerOptions& options) {
  for (size_t i = 0; i < requests.size(); ++i) {
    PromptEcho& echo = options.prompts[i];
    const v1::GenerateRequest& request = requests[i];
    if (options.echo && !request.has_text() && echo.text.empty()) {
      QUIRE_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, model.tokenizer());
      echo.text = tokenizer->Decode(echo.token_ids, /*skip_special_tokens=*/false);
    }
    if (options.needs_prompt_token_ids() && request.has_text()) {
      QUIRE_ASSIGN_OR_RETURN(
          echo.token_ids,
          model.Encode(
              request.text(), request.add_special_tokens(), request.parse_special_tokens()));
    }
  }
  return absl::OkStatus();
}

// Fails if the answer would repeat too many log-probabilities of prompt tokens. Each choice repeats
// those of its prompt. REQUIRES: options.prompts has all token ids that the answer repeats.
absl::Status CheckPromptScores(const v1::GenerateRequest& request, const AnswerOptions& options) {
  if (!request.response().has_prompt_logprobs()) {
    return absl::OkStatus();
  }
  int64_t num_tokens = 0;
  for (const PromptEcho& prompt : options.prompts) {
    num_tokens += static_cast<int64_t>(prompt.token_ids.size());
  }
  const int64_t most = options.stream ? ScoreBudget::kMaxOfEvents : ScoreBudget::kMaxOfAnswer;
  const int64_t num_scores =
      num_tokens * (1 + request.response().prompt_logprobs()) * options.num_choices_per_prompt;
  return num_scores <= most
             ? absl::OkStatus()
             : InvalidArgument(
                   "ANSWER_SIZE",
                   absl::StrCat(options.has_prompt_logprobs ? "prompt_logprobs" : "logprobs",
                                ": the prompts' log-probabilities, once for each choice, "
                                "are too many (got ",
                                num_scores,
                                ", limit ",
                                most,
                                ")"));
}

// Returns a function that gives the bytes of a token, or "" if the model has no tokenizer.
TokenText TokenTextOf(const ChatModel& model) {
  const absl::StatusOr<const Tokenizer*> tokenizer = model.tokenizer();
  if (!tokenizer.ok()) {
    return [](int32_t) { return std::string(); };
  }
  return [tokenizer = *tokenizer](int32_t id) { return std::string(tokenizer->TokenBytes(id)); };
}

}  // namespace

GenerationRoutes::GenerationRoutes(AsyncResumingClient& client,
                                   ModelGate& gate,
                                   Generation::Shared& shared,
                                   bool forwards_api_keys)
    : client_(client), gate_(gate), shared_(shared), forwards_api_keys_(forwards_api_keys) {}

std::vector<HttpRoute> GenerationRoutes::Routes() {
  return {Route("/v1/completions", OpenAiApi::kCompletions),
          Route("/v1/chat/completions", OpenAiApi::kChat)};
}

HttpRoute GenerationRoutes::Route(const char* path, OpenAiApi api) {
  return {.method = "POST",
          .path = path,
          .handler = [this, api](HttpRequest request, HttpResponder responder) {
            shared_.pool.Post(std::move(request),
                              std::move(responder),
                              [this, api](const HttpRequest& posted, HttpResponder to) {
                                Answer(api, posted, std::move(to));
                              });
          }};
}

void GenerationRoutes::Answer(OpenAiApi api, const HttpRequest& request, HttpResponder responder) {
  std::string id = RequestIdOf(request);
  const absl::StatusOr<ModelGate::Served> served = gate_.Enter();
  absl::StatusOr<Prepared> prepared = !served.ok() ? served.status()
                                      : api == OpenAiApi::kCompletions
                                          ? PrepareCompletion(*served, request.body, id)
                                          : PrepareChat(*served, request.body, id);
  if (!prepared.ok()) {
    HttpResponse refusal = ErrorAnswer(prepared.status(), std::nullopt, api);
    refusal.headers.emplace_back(kRequestIdHeader, id);
    responder.Answer(std::move(refusal));
    return;
  }
  AnswerOptions& options = prepared->options;
  if (options.model.empty()) {
    options.model = served->info->model();
  }
  id = options.id.substr(options.id.find('-') + 1);  // the body may have an id of its own
  const bool stream = options.stream;
  const int64_t created = absl::ToUnixSeconds(absl::Now());
  TokenText token_text = TokenTextOf(*served->model);
  std::unique_ptr<Response> response;
  if (api == OpenAiApi::kCompletions) {
    response =
        std::make_unique<CompletionResponse>(std::move(options), created, std::move(token_text));
  } else {
    response = std::make_unique<ChatResponse>(std::move(options), created, std::move(token_text));
  }
  std::make_shared<Generation>(api, stream, id, std::move(response), std::move(responder), shared_)
      ->Start(client_, prepared->requests, forwards_api_keys_ ? ApiKeyOf(request) : "");
}

absl::StatusOr<GenerationRoutes::Prepared> GenerationRoutes::PrepareCompletion(
    const ModelGate::Served& served, const std::string& body, const std::string& request_id) {
  QUIRE_ASSIGN_OR_RETURN(CompletionRequest parsed, ParseCompletionRequest(body, request_id));
  QUIRE_RETURN_IF_ERROR(CheckModelName(parsed.options.model, *served.info));
  QUIRE_RETURN_IF_ERROR(CompleteEchoes(*served.model, parsed.requests, parsed.options));
  QUIRE_RETURN_IF_ERROR(TokenizePrompts(served, parsed));
  QUIRE_RETURN_IF_ERROR(CheckPromptScores(parsed.requests.front(), parsed.options));
  return Prepared{.requests = std::move(parsed.requests), .options = std::move(parsed.options)};
}

absl::StatusOr<GenerationRoutes::Prepared> GenerationRoutes::PrepareChat(
    const ModelGate::Served& served, const std::string& body, const std::string& request_id) {
  QUIRE_ASSIGN_OR_RETURN(ChatRequest parsed,
                         ParseChatRequest(body, request_id, served.model->content_format()));
  QUIRE_RETURN_IF_ERROR(CheckModelName(parsed.options.model, *served.info));
  const Instant begin = SteadyNow();
  const absl::StatusOr<RenderedPrompt> prompt = served.model->Render(std::move(parsed.prompt));
  shared_.metrics.OnTemplate(SteadyNow() - begin);
  QUIRE_RETURN_IF_ERROR(prompt.status());
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                         served.model->Encode(*prompt, parsed.request.add_special_tokens()));
  parsed.request.clear_add_special_tokens();
  parsed.request.mutable_token_ids()->mutable_ids()->Add(tokens.begin(), tokens.end());
  if (parsed.options.needs_prompt_token_ids()) {
    parsed.options.prompts[0].token_ids = tokens;
  }
  QUIRE_RETURN_IF_ERROR(CheckPromptScores(parsed.request, parsed.options));
  Prepared prepared = {.requests = {}, .options = std::move(parsed.options)};
  prepared.requests.push_back(std::move(parsed.request));
  return prepared;
}

}  // namespace quire
