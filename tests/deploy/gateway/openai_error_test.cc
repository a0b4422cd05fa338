#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/json/json.h"
#include "deploy/gateway/openai/error_body.h"

namespace quire {
namespace {

struct Expected {
  absl::StatusCode code;
  int http_status;
  std::string type;
};

const std::map<std::string, Expected>& ExpectedOfCode() {
  static const auto& table = *new std::map<std::string, Expected>{
      {"INVALID_ARGUMENT", {absl::StatusCode::kInvalidArgument, 400, "invalid_request_error"}},
      {"UNAUTHENTICATED", {absl::StatusCode::kUnauthenticated, 401, "authentication_error"}},
      {"PERMISSION_DENIED", {absl::StatusCode::kPermissionDenied, 403, "permission_error"}},
      {"NOT_FOUND", {absl::StatusCode::kNotFound, 404, "invalid_request_error"}},
      {"FAILED_PRECONDITION", {absl::StatusCode::kFailedPrecondition, 503, "server_error"}},
      {"ALREADY_EXISTS", {absl::StatusCode::kAlreadyExists, 409, "conflict_error"}},
      {"RESOURCE_EXHAUSTED", {absl::StatusCode::kResourceExhausted, 429, "rate_limit_error"}},
      {"UNAVAILABLE", {absl::StatusCode::kUnavailable, 503, "server_error"}},
      {"DEADLINE_EXCEEDED", {absl::StatusCode::kDeadlineExceeded, 408, "timeout_error"}},
      {"CANCELLED", {absl::StatusCode::kCancelled, 499, "request_cancelled"}},
      {"ABORTED", {absl::StatusCode::kAborted, 409, "conflict_error"}},
      {"INTERNAL", {absl::StatusCode::kInternal, 500, "server_error"}},
  };
  return table;
}

const std::map<std::string, int>& OtherStatusOfReason() {
  static const auto& table = *new std::map<std::string, int>{
      {"INVALID_ARGUMENT MALFORMED_PROTO", 500},
      {"INVALID_ARGUMENT UNKNOWN_FIELDS", 500},
      {"INVALID_ARGUMENT RESUME", 500},
      {"INVALID_ARGUMENT PROMPT_BYTES", 413},
      {"INVALID_ARGUMENT TEXT_BYTES", 413},
      {"FAILED_PRECONDITION NO_TOKENIZER", 400},
      {"FAILED_PRECONDITION PREFIX_CACHE_OFF", 400},
      {"RESOURCE_EXHAUSTED EXCEEDS_CAPACITY", 503},
      {"ABORTED SLOW_CONSUMER", 408},
  };
  return table;
}

Json ErrorOf(const HttpError& error) { return Json::parse(error.body)["error"]; }

bool IsReason(const std::string& word) {
  return word.size() > 4 &&
         word.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == std::string::npos;
}

TEST(OpenAiErrorTest, EachReasonOfTheSchedulerHasItsHttpStatus) {
  std::ifstream readme("scheduler/rpc/README.md");
  std::string line;
  int num_reasons = 0;
  while (std::getline(readme, line)) {
    for (const auto& [name, expected] : ExpectedOfCode()) {
      if (!line.starts_with("| " + name + " |")) {
        continue;
      }
      std::replace_if(
          line.begin(), line.end(), [](char c) { return absl::StrContains(";:()", c); }, ' ');
      std::istringstream words(line.substr(name.size() + 4));
      for (std::string reason; words >> reason;) {
        if (!IsReason(reason)) {
          continue;
        }
        const HttpError error = ToHttpError(Error(expected.code, reason, "stopping.stop: is bad"),
                                            std::nullopt,
                                            OpenAiApi::kCompletions);
        const auto other = OtherStatusOfReason().find(absl::StrCat(name, " ", reason));
        const bool is_other = other != OtherStatusOfReason().end();
        EXPECT_EQ(error.status, is_other ? other->second : expected.http_status) << reason;
        const bool is_context = reason == "PROMPT_TOO_LONG" || reason == "CONTEXT_EXCEEDED";
        EXPECT_EQ(ErrorOf(error)["code"], is_context ? "context_length_exceeded" : reason);
        if (!is_other) {
          EXPECT_EQ(ErrorOf(error)["type"], expected.type) << reason;
        }
        ++num_reasons;
      }
    }
  }
  EXPECT_GE(num_reasons, 70);
}

TEST(OpenAiErrorTest, FieldsHaveTheNamesOfTheApi) {
  const auto error = [](std::string_view message, OpenAiApi api) {
    return ErrorOf(ToHttpError(InvalidArgument("REASON", message), std::nullopt, api)).dump();
  };
  EXPECT_EQ(error("stopping.stop: too many", OpenAiApi::kChat),
            R"({"code":"REASON","message":"stop: too many","param":"stop",)"
            R"("type":"invalid_request_error"})");
  const auto param = [](std::string_view field, OpenAiApi api) {
    return ErrorOf(ToHttpError(
        InvalidArgument("R", absl::StrCat(std::string(field), ": x")), std::nullopt, api))["param"];
  };
  EXPECT_EQ(param("sampling.top_p", OpenAiApi::kChat), "top_p");
  EXPECT_EQ(param("response.logprobs", OpenAiApi::kChat), "top_logprobs");
  EXPECT_EQ(param("response.logprobs", OpenAiApi::kCompletions), "logprobs");
  EXPECT_EQ(param("response.prompt_logprobs", OpenAiApi::kChat), "prompt_logprobs");
  EXPECT_EQ(param("stopping.include_stop_in_output", OpenAiApi::kChat),
            "include_stop_str_in_output");
  EXPECT_EQ(param("text", OpenAiApi::kChat), "messages");
  EXPECT_EQ(param("token_ids", OpenAiApi::kCompletions), "prompt");
  EXPECT_EQ(param("n", OpenAiApi::kChat), "n");
}

TEST(OpenAiErrorTest, MaxTokensHasTheNameThatTheClientWrote) {
  const auto error = [](std::string_view field) {
    return ErrorOf(ToHttpError(
        InvalidArgument("MAX_TOKENS_RANGE", absl::StrCat(std::string(field), ": too large")),
        std::nullopt,
        OpenAiApi::kChat,
        "max_completion_tokens"));
  };
  EXPECT_EQ(error("stopping.max_tokens")["param"], "max_completion_tokens");
  EXPECT_EQ(error("stopping.max_tokens")["message"], "max_completion_tokens: too large");
  EXPECT_EQ(error("stopping.min_tokens")["param"], "min_tokens");
}

// litellm and langchain tell a prompt that is too long from other bad requests by these.
TEST(OpenAiErrorTest, APromptBeyondTheContextHasOpenAisCodeAndWords) {
  const Json error = ErrorOf(ToHttpError(
      InvalidArgument("CONTEXT_EXCEEDED", "stopping.max_tokens: too long (got 9, limit 8)"),
      std::nullopt,
      OpenAiApi::kChat));
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["message"],
            "max_tokens: too long (got 9, limit 8); this model's maximum context length is "
            "exceeded");
  EXPECT_EQ(error["param"], "max_tokens");
}

TEST(OpenAiErrorTest, OnlyErrorsOfAFieldHaveAParam) {
  const Json error =
      ErrorOf(ToHttpError(Error(absl::StatusCode::kCancelled, "ADMIN", "request: cancelled"),
                          std::nullopt,
                          OpenAiApi::kChat));
  EXPECT_TRUE(error["param"].is_null());
  EXPECT_EQ(error["message"], "request: cancelled");
  const Json whole = ErrorOf(ToHttpError(
      InvalidArgument("EXCEEDS_CAPACITY", "request: is too long"), std::nullopt, OpenAiApi::kChat));
  EXPECT_TRUE(whole["param"].is_null()) << "a request has no field \"request\"";
  EXPECT_EQ(whole["code"], "EXCEEDS_CAPACITY");
}

TEST(OpenAiErrorTest, AMessageWithoutAReasonIsReplaced) {
  const HttpError error =
      ToHttpError(absl::UnavailableError("failed to connect: ipv4:10.0.0.1:50051"),
                  std::nullopt,
                  OpenAiApi::kChat);
  EXPECT_EQ(error.status, 503);
  EXPECT_EQ(error.body,
            R"({"error":{"message":"no server is available","type":"server_error","param":null,)"
            R"("code":"NO_SCHEDULER"}})");
  EXPECT_EQ(error.retry_after_s, 2);
  EXPECT_EQ(ToHttpError(absl::UnknownError("x"), std::nullopt, OpenAiApi::kChat).status, 500);
  EXPECT_EQ(ToHttpError(absl::UnauthenticatedError("x"), std::nullopt, OpenAiApi::kChat).status,
            401);
}

TEST(OpenAiErrorTest, RetryAfterIsWholeSecondsIfARetryHelps) {
  const auto after =
      [](absl::StatusCode code, std::string_view reason, std::optional<absl::Duration> delay) {
        return ToHttpError(Error(code, reason, "server: x"), delay, OpenAiApi::kChat).retry_after_s;
      };
  EXPECT_EQ(after(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", absl::Milliseconds(2100)), 3);
  EXPECT_EQ(after(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", absl::Milliseconds(10)), 1);
  EXPECT_EQ(after(absl::StatusCode::kResourceExhausted, "TOKENIZE_MEMORY", std::nullopt),
            std::nullopt);
  EXPECT_EQ(after(absl::StatusCode::kResourceExhausted, "ANSWER_MEMORY", std::nullopt), 5);
  EXPECT_EQ(after(absl::StatusCode::kUnavailable, "LOADING", absl::Seconds(5)), 5);
  EXPECT_EQ(after(absl::StatusCode::kUnavailable, "DRAINING", std::nullopt), 2);
  EXPECT_EQ(after(absl::StatusCode::kUnavailable, "LOADING", absl::InfiniteDuration()), 3600);
  EXPECT_EQ(after(absl::StatusCode::kInvalidArgument, "N_RANGE", absl::Seconds(5)), std::nullopt);
}

TEST(OpenAiErrorTest, TheHttpServersOwnErrorsHaveTheSameForm) {
  EXPECT_EQ(HttpErrorBody(404, "no such route"),
            R"({"error":{"message":"no such route","type":"invalid_request_error","param":null,)"
            R"("code":null}})");
}

}  // namespace
}  // namespace quire
