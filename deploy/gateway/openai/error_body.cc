#include "deploy/gateway/openai/error_body.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/string_view.h"
#include "common/json/json.h"
#include "deploy/gateway/openai/json_fields.h"

namespace quire {
namespace {

constexpr absl::Duration kDefaultRetryDelay = absl::Seconds(2);
// After this time some of the answers that hold log-probabilities have probably ended.
constexpr absl::Duration kAnswerMemoryRetryDelay = absl::Seconds(5);
constexpr absl::Duration kLongestRetryDelay = absl::Hours(1);

struct CodeRow {
  absl::StatusCode code;
  int http_status;
  std::string_view message;  // replaces that of a status without a reason
};

// A code that is not in this table becomes 500.
constexpr CodeRow kCodes[] = {
    {absl::StatusCode::kInvalidArgument, 400, "the request is not valid"},
    {absl::StatusCode::kUnauthenticated, 401, "the API key is missing or not known"},
    {absl::StatusCode::kPermissionDenied, 403, "the API key does not allow this"},
    {absl::StatusCode::kNotFound, 404, "not found"},
    {absl::StatusCode::kDeadlineExceeded, 408, "the time limit of the request has passed"},
    {absl::StatusCode::kAlreadyExists, 409, "the request exists already"},
    {absl::StatusCode::kAborted, 409, "another request took over"},
    {absl::StatusCode::kResourceExhausted, 429, "the server is at its limit"},
    {absl::StatusCode::kCancelled, 499, "the request was cancelled"},
    {absl::StatusCode::kFailedPrecondition, 503, "no server can continue the answer"},
    {absl::StatusCode::kUnavailable, 503, "no server is available"},
};

struct ReasonRow {
  std::string_view reason;
  absl::StatusCode code;
  int http_status;
};

// Reasons whose HTTP status differs from that of their code.
constexpr ReasonRow kReasons[] = {
    // The gateway itself wrote the refused message, so the HTTP client is not at fault.
    {"MALFORMED_PROTO", absl::StatusCode::kInvalidArgument, 500},
    {"UNKNOWN_FIELDS", absl::StatusCode::kInvalidArgument, 500},
    {"RESUME", absl::StatusCode::kInvalidArgument, 500},
    {"PROMPT_BYTES", absl::StatusCode::kInvalidArgument, 413},
    {"TEXT_BYTES", absl::StatusCode::kInvalidArgument, 413},
    {"NO_CHAT_TEMPLATE", absl::StatusCode::kFailedPrecondition, 400},
    {"NO_TOKENIZER", absl::StatusCode::kFailedPrecondition, 400},
    {"PREFIX_CACHE_OFF", absl::StatusCode::kFailedPrecondition, 400},
    {"SLOW_CONSUMER", absl::StatusCode::kAborted, 408},
    // The workers came back with less memory, so waiting does not help at this server.
    {"EXCEEDS_CAPACITY", absl::StatusCode::kResourceExhausted, 503},
};

// Reasons of a prompt that is too long. Clients recognize this error by OpenAI's code, or by words
// that OpenAI's and vLLM's messages have.
constexpr std::string_view kContextReasons[] = {"PROMPT_TOO_LONG", "CONTEXT_EXCEEDED"};
constexpr std::string_view kContextCode = "context_length_exceeded";
constexpr std::string_view kContextWords = "; this model's maximum context length is exceeded";

struct FieldRow {
  std::string_view field;  // as the scheduler's messages name it
  std::string_view completions;
  std::string_view chat;
};

// Fields whose name in the API differs from the scheduler's. For any other field, the API has the
// scheduler's name without a prefix of kPrefixes.
constexpr FieldRow kFields[] = {
    {"text", "prompt", "messages"},
    {"token_ids", "prompt", "messages"},
    {"prompt", "prompt", "messages"},
    {"response.logprobs", "logprobs", "top_logprobs"},
    {"stopping.include_stop_in_output", "include_stop_str_in_output", "include_stop_str_in_output"},
};
constexpr std::string_view kPrefixes[] = {"sampling.", "stopping.", "response."};

int HttpStatusOf(const absl::Status& status, std::string_view reason) {
  for (const ReasonRow& row : kReasons) {
    if (row.reason == reason && row.code == status.code()) {
      return row.http_status;
    }
  }
  for (const CodeRow& row : kCodes) {
    if (row.code == status.code()) {
      return row.http_status;
    }
  }
  return 500;
}

std::string_view DefaultMessage(absl::StatusCode code) {
  for (const CodeRow& row : kCodes) {
    if (row.code == code) {
      return row.message;
    }
  }
  return "the server failed";
}

std::string_view TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 408:
      return "timeout_error";
    case 409:
      return "conflict_error";
    case 429:
      return "rate_limit_error";
    case 499:
      return "request_cancelled";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string_view ApiName(std::string_view field, OpenAiApi api, std::string_view max_tokens_name) {
  if (field == "stopping.max_tokens") {
    return max_tokens_name;
  }
  for (const FieldRow& row : kFields) {
    if (row.field == field) {
      return api == OpenAiApi::kChat ? row.chat : row.completions;
    }
  }
  for (const std::string_view prefix : kPrefixes) {
    if (field.starts_with(prefix)) {
      return field.substr(prefix.size());
    }
  }
  return field;
}

// True if messages of this code begin with a field of the request.
bool NamesField(absl::StatusCode code) {
  return code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kNotFound ||
         code == absl::StatusCode::kAlreadyExists;
}

std::string Body(int http_status,
                 std::string_view message,
                 std::string_view param,
                 std::string_view code) {
  OrderedJson error = OrderedJson::object({{"message", message}, {"type", TypeOf(http_status)}});
  AddMember("param", param.empty() ? OrderedJson() : OrderedJson(param), error);
  AddMember("code", code.empty() ? OrderedJson() : OrderedJson(code), error);
  return ToText(OrderedJson::object({{"error", std::move(error)}}));
}

std::optional<int> RetryAfter(int http_status,
                              std::string_view reason,
                              std::optional<absl::Duration> retry_delay) {
  if (reason == "ANSWER_MEMORY") {
    retry_delay = kAnswerMemoryRetryDelay;
  }
  const bool is_retryable = http_status == 429 || http_status == 503;
  if (!is_retryable || (http_status == 429 && !retry_delay.has_value())) {
    return std::nullopt;
  }
  const absl::Duration delay =
      std::clamp(retry_delay.value_or(kDefaultRetryDelay), absl::Seconds(1), kLongestRetryDelay);
  return static_cast<int>(absl::ToInt64Seconds(absl::Ceil(delay, absl::Seconds(1))));
}

}  // namespace

HttpError ToHttpError(const absl::Status& status,
                      std::optional<absl::Duration> retry_delay,
                      OpenAiApi api,
                      std::string_view max_tokens_name) {
  const std::string reason = ReasonOf(status);
  HttpError error;
  error.status = HttpStatusOf(status, reason);
  error.retry_after_s = RetryAfter(error.status, reason, retry_delay);
  if (reason.empty()) {
    // kUnavailable without a reason comes from gRPC itself: no scheduler answered within the time
    // that a request may wait for one.
    const bool is_given_up = status.code() == absl::StatusCode::kUnavailable;
    error.body =
        Body(error.status, DefaultMessage(status.code()), "", is_given_up ? "NO_SCHEDULER" : "");
    return error;
  }
  const bool is_context = std::ranges::count(kContextReasons, reason) > 0;
  const std::string_view code = is_context ? kContextCode : reason;
  const std::string message =
      absl::StrCat(status.message(), is_context ? ToAbsl(kContextWords) : "");
  const size_t colon = message.find(": ");
  const std::string field = colon == std::string::npos ? "" : message.substr(0, colon);
  const bool is_whole_request = reason == "JSON" || field == "request";
  const bool has_field =
      NamesField(status.code()) && error.status < 500 && !is_whole_request && !field.empty();
  if (!has_field) {
    error.body = Body(error.status, message, "", code);
    return error;
  }
  const std::string_view param = ApiName(field, api, max_tokens_name);
  error.body = Body(error.status, absl::StrCat(ToAbsl(param), message.substr(colon)), param, code);
  return error;
}

std::string HttpErrorBody(int http_status, std::string_view message) {
  return Body(http_status, message, "", "");
}

}  // namespace quire
