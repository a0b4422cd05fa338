// Answers the requests of check_openai_types.py with FakeStream. Standard input has lines "ROUTE
// BODY"; standard output has for each line {"status": 200, "texts": [...]} or {"status": 400,
// "error": {...}}.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/json/json.h"
#include "deploy/gateway/openai/chat_request.h"
#include "deploy/gateway/openai/chat_response.h"
#include "deploy/gateway/openai/completion_request.h"
#include "deploy/gateway/openai/completion_response.h"
#include "deploy/gateway/openai/error_body.h"
#include "deploy/gateway/openai/service_bodies.h"
#include "tests/deploy/gateway/fake_stream.h"

namespace quire {
namespace {

using Texts = std::vector<std::string>;
constexpr int64_t kCreated = 1'700'000'000;

Texts Answer(const std::vector<v1::GenerateRequest>& requests, Response& response) {
  Texts texts;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (const v1::GenerateResponse& message : FakeStream(requests[i])) {
      for (std::string& text : response.Take(static_cast<int32_t>(i), message)) {
        texts.push_back(std::move(text));
      }
    }
  }
  for (std::string& text : response.Finish()) {
    texts.push_back(std::move(text));
  }
  return texts;
}

void Complete(AnswerOptions& options) {
  if (options.model.empty()) {
    options.model = "tiny";
  }
  for (PromptEcho& prompt : options.prompts) {
    prompt.token_ids = {0, 1, 2};
  }
}

absl::StatusOr<Texts> AnswerCompletions(const std::string& body) {
  auto parsed = ParseCompletionRequest(body, "r1");
  if (!parsed.ok()) {
    return parsed.status();
  }
  Complete(parsed->options);
  CompletionResponse response(parsed->options, kCreated, FakeTokenText);
  return Answer(parsed->requests, response);
}

absl::StatusOr<Texts> AnswerChat(const std::string& body) {
  auto parsed = ParseChatRequest(body, "r1");
  if (!parsed.ok()) {
    return parsed.status();
  }
  Complete(parsed->options);
  ChatResponse response(parsed->options, kCreated, FakeTokenText);
  return Answer({parsed->request}, response);
}

absl::StatusOr<Texts> AnswerTokenize(const std::string& body) {
  auto parsed = ParseTokenizeBody(body);
  if (!parsed.ok()) {
    return parsed.status();
  }
  return Texts{TokenizeAnswer({5}, 100, std::vector<std::string>{FakeTokenText(5)})};
}

absl::StatusOr<Texts> AnswerRoute(const std::string& route, const std::string& body) {
  v1::GetServerInfoResponse info;
  info.set_model("tiny");
  info.add_model_names("tiny");
  info.set_max_model_len_tokens(100);
  if (route == "completions") {
    return AnswerCompletions(body);
  }
  if (route == "chat") {
    return AnswerChat(body);
  }
  if (route == "tokenize") {
    return AnswerTokenize(body);
  }
  if (route == "models") {
    return Texts{ModelsBody(info, kCreated), ModelBody(info, "tiny", kCreated)};
  }
  const auto parsed = ParseDetokenizeBody(body);
  if (!parsed.ok()) {
    return parsed.status();
  }
  return Texts{DetokenizeAnswer("text")};
}

OrderedJson Describe(const std::string& route, const std::string& body) {
  const auto texts = AnswerRoute(route, body);
  if (texts.ok()) {
    return OrderedJson::object({{"status", 200}, {"texts", *texts}});
  }
  const auto api = route == "chat" ? OpenAiApi::kChat : OpenAiApi::kCompletions;
  const HttpError error = ToHttpError(texts.status(), std::nullopt, api);
  return OrderedJson::object(
      {{"status", error.status}, {"error", OrderedJson::parse(error.body)["error"]}});
}

}  // namespace
}  // namespace quire

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const size_t space = line.find(' ');
    std::cout << quire::Describe(line.substr(0, space), line.substr(space + 1)).dump() << "\n";
  }
}
