// A request of an OpenAI client: the first byte is the route, the rest the body. It is refused with
// a field and a reason that HTTP can show, or gives requests within the gateway's bounds, whose
// answer is valid JSON in each event.
#include <string>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/json/json.h"
#include "deploy/gateway/openai/chat_request.h"
#include "deploy/gateway/openai/chat_response.h"
#include "deploy/gateway/openai/completion_request.h"
#include "deploy/gateway/openai/completion_response.h"
#include "deploy/gateway/openai/error_body.h"
#include "deploy/gateway/openai/service_bodies.h"
#include "tests/deploy/gateway/fake_stream.h"
#include "tests/fuzz/fuzz_verdict.h"

namespace {

using quire::v1::GenerateRequest;

void CheckRefusal(const absl::Status& status) {
  QUIRE_CHECK(absl::IsInvalidArgument(status));
  QUIRE_CHECK(!quire::ReasonOf(status).empty());
  const auto error = quire::ToHttpError(status, std::nullopt, quire::OpenAiApi::kCompletions);
  QUIRE_CHECK_EQ(error.status, 400);
  QUIRE_CHECK(quire::ParseJson(error.body).ok());
}

void CheckRequest(const GenerateRequest& request) {
  QUIRE_CHECK(request.n() >= 1 && request.n() <= 16);
  QUIRE_CHECK(!request.has_best_of() ||
              (request.best_of() >= request.n() && request.best_of() <= 16));
  QUIRE_CHECK_LE(request.stopping().stop_size(), 16);
  QUIRE_CHECK_LE(request.stopping().stop_token_ids_size(), 64);
  QUIRE_CHECK_LE(request.sampling().logit_bias_size(), 300);
  QUIRE_CHECK(!request.has_text() || !request.has_token_ids());
  for (const auto& bias : request.sampling().logit_bias()) {
    QUIRE_CHECK(bias.bias() >= -100.0F && bias.bias() <= 100.0F);
  }
  // A proto3 string that is not UTF-8 does not survive serialization.
  GenerateRequest again;
  QUIRE_CHECK(again.ParseFromString(request.SerializeAsString()));
}

void CheckTexts(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    QUIRE_CHECK(quire::ParseJson(text).ok());
  }
}

void CheckAnswer(const std::vector<GenerateRequest>& requests, quire::Response& response) {
  for (size_t i = 0; i < requests.size(); ++i) {
    CheckRequest(requests[i]);
    GenerateRequest bounded = requests[i];  // the scheduler refuses more log-probabilities
    if (bounded.response().logprobs() > 20) {
      bounded.mutable_response()->set_logprobs(20);
    }
    if (bounded.response().prompt_logprobs() > 20) {
      bounded.mutable_response()->set_prompt_logprobs(20);
    }
    for (const auto& message : quire::FakeStream(bounded)) {
      CheckTexts(response.Take(static_cast<int32_t>(i), message));
    }
  }
  QUIRE_CHECK(response.has_ended());
  CheckTexts(response.Finish());
}

absl::Status RunRoute(uint8_t route, const std::string& body) {
  if (route % 4 == 0) {
    auto parsed = quire::ParseCompletionRequest(body, "r1");
    if (!parsed.ok()) {
      return parsed.status();
    }
    QUIRE_CHECK(!parsed->requests.empty() && parsed->requests.size() <= 128);
    quire::CompletionResponse response(parsed->options, 0, quire::FakeTokenText);
    CheckAnswer(parsed->requests, response);
    return absl::OkStatus();
  }
  if (route % 4 == 1) {
    auto parsed = quire::ParseChatRequest(body, "r1");
    if (!parsed.ok()) {
      return parsed.status();
    }
    for (const auto& message : parsed->prompt.messages()) {
      QUIRE_CHECK(message["role"].is_string() && message["content"].is_string());
    }
    quire::ChatResponse response(parsed->options, 0, quire::FakeTokenText);
    CheckAnswer({parsed->request}, response);
    return absl::OkStatus();
  }
  return route % 4 == 2 ? quire::ParseTokenizeBody(body).status()
                        : quire::ParseDetokenizeBody(body).status();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const absl::Status status = RunRoute(data[0], body);
  if (!status.ok()) {
    CheckRefusal(status);
  }
  quire::is_accepted = status.ok();
  return 0;
}
