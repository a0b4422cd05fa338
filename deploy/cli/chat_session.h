// ChatSession is a conversation with a model through /v1/chat/completions: it holds the messages,
// and streams answers.
//
// Thread safety: one thread at a time; Cancel: any thread.
#ifndef QUIRE_DEPLOY_CLI_CHAT_SESSION_H_
#define QUIRE_DEPLOY_CLI_CHAT_SESSION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

#include "common/base/clock.h"
#include "common/http/http_client.h"
#include "common/json/json.h"
#include "deploy/cli/openai_server.h"

namespace quire {

// The result of a question.
struct ChatAnswer {
  // The status of OpenAiStream::Finish; kCancelled after Cancel; kInternal OPENAI_ANSWER above 16
  // MiB.
  absl::Status status;
  std::string text;  // after a failure: the part that came
  std::string finish_reason;
  std::optional<int32_t> num_tokens;
  Instant first_text_at = 0;
  Instant last_text_at = 0;
};

class ChatSession {
 public:
  using OnText = std::function<void(std::string_view)>;

  // parameters: further fields of each request's body, such as model and temperature.
  ChatSession(OpenAiServer server, OrderedJson parameters);

  // Replaces the system message. An empty text removes it.
  void SetSystem(std::string text) { system_ = std::move(text); }
  // Forgets all messages except the system message.
  void Clear();

  // Asks the model, and gives the text of the answer to on_text as it arrives. Message and answer
  // join the conversation if the answer is complete, or if it has text before it is cut or
  // cancelled. Otherwise the conversation does not change.
  ChatAnswer Ask(const std::string& message, const OnText& on_text);
  // Asks the last question again, and replaces its answer if it has one. If the new attempt fails
  // before any text arrives, the old answer stays. REQUIRES: can_regenerate().
  ChatAnswer Regenerate(const OnText& on_text);
  bool can_regenerate() const { return !unanswered_.empty() || !history_.empty(); }

  // Ends the answer that runs, if any.
  void Cancel() { client_.Cancel(); }

  // Returns the messages; the system's message comes first.
  OrderedJson Messages() const { return MessagesOf(history_); }

 private:
  OrderedJson MessagesOf(const OrderedJson& history) const;
  // Asks `message` after `history`. If the answer is complete or has text, `history`, the message
  // and the answer replace history_.
  ChatAnswer AskAfter(OrderedJson history, const std::string& message, const OnText& on_text);

  const OpenAiServer server_;
  const OrderedJson parameters_;
  HttpClient client_;
  std::string system_;
  OrderedJson history_ = OrderedJson::array();  // the user's and the model's messages, in turn
  std::string unanswered_;                      // the last question, if it got no answer
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_CHAT_SESSION_H_
