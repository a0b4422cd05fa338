#include "deploy/cli/openai_stream.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

// Much more than the largest events, which take some 10 KB with log-probabilities.
constexpr size_t kMaxEventBytes = size_t{1} << 20;
constexpr size_t kMaxErrorBytes = size_t{1} << 16;
constexpr int kHttpOk = 200;

absl::StatusCode CodeOf(int status_code) {
  switch (status_code) {
    case 400:
    case 413:
    case 422:
      return absl::StatusCode::kInvalidArgument;
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
    case 405:
      return absl::StatusCode::kNotFound;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 502:
    case 503:
      return absl::StatusCode::kUnavailable;
    case 408:
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Returns the member of an object, or JSON's null.
const Json& Member(const Json& json, const char* name) {
  static const Json null;
  const auto found = json.is_object() ? json.find(name) : json.end();
  return json.is_object() && found != json.end() ? *found : null;
}

std::string TextOf(const Json& json) {
  return json.is_string() ? json.get<std::string>() : std::string();
}

std::optional<int32_t> CountOf(const Json& json) {
  constexpr auto kMax = uint64_t{std::numeric_limits<int32_t>::max()};
  return json.is_number_unsigned() && json.get<uint64_t>() <= kMax
             ? std::optional<int32_t>(json.get<int32_t>())
             : std::nullopt;
}

absl::Status StatusOf(absl::StatusCode code, const std::string& reason, const std::string& text) {
  return reason.empty() ? absl::Status(code, text) : Error(code, reason, text);
}

// Returns the status for an error's JSON, which is an object of OpenAI's form or a text.
absl::Status StatusOfError(int status_code, const Json& error) {
  const Json& code = Member(error, "code");
  // An error inside a stream comes with HTTP status 200. vLLM and llama-server write the HTTP
  // status that describes the error into `code`.
  if (status_code == kHttpOk) {
    status_code = CountOf(code).value_or(500);
  }
  const std::string message =
      error.is_string() ? error.get<std::string>() : TextOf(Member(error, "message"));
  return StatusOf(CodeOf(status_code),
                  TextOf(code),
                  message.empty() ? absl::StrCat("HTTP status ", status_code) : message);
}

absl::Status NoStream(std::string_view cause) {
  return Error(
      absl::StatusCode::kInternal,
      "OPENAI_ANSWER",
      absl::StrCat("the server's answer is not a stream of OpenAI's API: ", ToAbsl(cause)));
}

}  // namespace

absl::Status StatusOfHttpError(int status_code, std::string_view body) {
  const absl::StatusOr<Json> json = ParseJson(body);
  if (json.ok()) {
    for (const char* name : {"error", "detail"}) {
      if (const Json& error = Member(*json, name); error.is_object() || error.is_string()) {
        return StatusOfError(status_code, error);
      }
    }
    if (Member(*json, "message").is_string()) {
      return StatusOfError(status_code, *json);  // form of vLLM before 0.10
    }
  }
  return absl::Status(CodeOf(status_code), absl::StrCat("HTTP status ", status_code));
}

OpenAiStream::OpenAiStream(std::function<void(const Text&)> on_text)
    : on_text_(std::move(on_text)), events_(kMaxEventBytes) {}

bool OpenAiStream::Put(const HttpResponse& head, std::string_view piece) {
  status_code_ = head.status_code;
  if (status_code_ != kHttpOk ||
      !absl::StartsWithIgnoreCase(head.content_type, "text/event-stream")) {
    error_body_.append(piece.substr(0, kMaxErrorBytes - error_body_.size()));
    return error_body_.size() < kMaxErrorBytes;
  }
  const absl::Status status =
      events_.Put(piece, [this](std::string_view data) { TakeEvent(data); });
  if (status_.ok()) {
    status_ = status;
  }
  return status_.ok();
}

void OpenAiStream::TakeEvent(std::string_view data) {
  if (!status_.ok()) {
    return;
  }
  const absl::StatusOr<Json> json = ParseJson(data);
  if (!json.ok() || !json->is_object()) {
    status_ = NoStream("an event is no JSON object");
    return;
  }
  if (const Json& error = Member(*json, "error"); !error.is_null()) {
    status_ = StatusOfError(kHttpOk, error);
    return;
  }
  const Json& usage = Member(*json, "usage");
  if (const auto count = CountOf(Member(usage, "prompt_tokens")); count.has_value()) {
    num_prompt_tokens_ = count;
  }
  if (const auto count = CountOf(Member(usage, "completion_tokens")); count.has_value()) {
    num_output_tokens_ = count;
  }
  const Json& choices = Member(*json, "choices");
  if (choices.is_array() && !choices.empty()) {
    TakeChoice(choices[0]);
  }
}

void OpenAiStream::TakeChoice(const Json& choice) {
  const Json& delta = Member(choice, "delta");
  Text text;
  text.answer = TextOf(delta.is_object() ? Member(delta, "content") : Member(choice, "text"));
  text.reasoning = TextOf(Member(delta, "reasoning_content"));
  if (text.reasoning.empty()) {
    text.reasoning = TextOf(Member(delta, "reasoning"));
  }
  if (!text.answer.empty() || !text.reasoning.empty()) {
    on_text_(text);
  }
  if (const Json& reason = Member(choice, "finish_reason"); reason.is_string()) {
    finish_reason_ = reason.get<std::string>();
  }
}

absl::Status OpenAiStream::Finish(const absl::StatusOr<HttpResponse>& call) const {
  if (!status_.ok()) {
    return status_;
  }
  if (events_.is_done()) {
    return absl::OkStatus();
  }
  const int status_code = call.ok() ? call->status_code : status_code_;
  if (status_code != kHttpOk && status_code != 0) {
    return StatusOfHttpError(status_code, error_body_);
  }
  if (!error_body_.empty()) {
    return NoStream("it has another content type");
  }
  if (!call.ok()) {
    return call.status();
  }
  return finish_reason_.empty()
             ? Error(absl::StatusCode::kUnavailable, "HTTP_CUT", "the stream has no end")
             : absl::OkStatus();
}

}  // namespace quire
