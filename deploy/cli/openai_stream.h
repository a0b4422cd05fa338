// OpenAiStream reads a streamed answer of /v1/completions or /v1/chat/completions by Quire, vLLM,
// llama-server or OpenAI. The answer comes in the pieces of an HTTP call. The server is not
// trusted.
//
// Thread safety: one thread at a time.
#ifndef QUIRE_DEPLOY_CLI_OPENAI_STREAM_H_
#define QUIRE_DEPLOY_CLI_OPENAI_STREAM_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/http/http_message.h"
#include "common/http/sse_reader.h"
#include "common/json/json.h"

namespace quire {

// Converts an HTTP error to a status. The status's reason is the `code` of the body if `code` is a
// text. Understands the bodies of OpenAI, vLLM, llama-server and FastAPI. REQUIRES: status_code is
// not 200.
absl::Status StatusOfHttpError(int status_code, std::string_view body);

class OpenAiStream {
 public:
  // The text of one event. At least one of the two parts is not empty.
  struct Text {
    std::string answer;
    std::string reasoning;  // of a model that thinks, if the server separates it
  };

  explicit OpenAiStream(std::function<void(const Text&)> on_text);

  // Takes the next piece of the body. Returns false if the caller can drop the rest.
  bool Put(const HttpResponse& head, std::string_view piece);

  // Returns how the request ended. `call`: how the HTTP call ended. Errors: those of HttpClient;
  // errors that the server reports, in place of the stream or in it; kInternal OPENAI_ANSWER for an
  // answer that is not a stream in OpenAI's format; kUnavailable HTTP_CUT for a truncated stream.
  absl::Status Finish(const absl::StatusOr<HttpResponse>& call) const;

  // Values from the events so far.
  const std::string& finish_reason() const { return finish_reason_; }
  std::optional<int32_t> num_prompt_tokens() const { return num_prompt_tokens_; }
  std::optional<int32_t> num_output_tokens() const { return num_output_tokens_; }

 private:
  void TakeEvent(std::string_view data);
  void TakeChoice(const Json& choice);

  const std::function<void(const Text&)> on_text_;
  SseReader events_;
  absl::Status status_;
  int status_code_ = 0;     // 0: no piece came
  std::string error_body_;  // of an answer that is no stream
  std::string finish_reason_;
  std::optional<int32_t> num_prompt_tokens_;
  std::optional<int32_t> num_output_tokens_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_OPENAI_STREAM_H_
