#include "deploy/cli/chat_session.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "deploy/cli/openai_stream.h"

namespace quire {
namespace {

constexpr char kTarget[] = "/v1/chat/completions";
// Bounds the memory of an answer, because a server might never end it.
constexpr size_t kMaxAnswerBytes = size_t{16} << 20;

OrderedJson Message(const char* role, const std::string& content) {
  return OrderedJson::object({{"role", role}, {"content", content}});
}

}  // namespace

ChatSession::ChatSession(OpenAiServer server, OrderedJson parameters)
    : server_(std::move(server)), parameters_(std::move(parameters)), client_(server_.client) {}

void ChatSession::Clear() {
  history_.clear();
  unanswered_.clear();
}

OrderedJson ChatSession::MessagesOf(const OrderedJson& history) const {
  OrderedJson messages = OrderedJson::array();
  if (!system_.empty()) {
    messages.push_back(Message("system", system_));
  }
  messages.insert(messages.end(), history.begin(), history.end());
  return messages;
}

ChatAnswer ChatSession::Ask(const std::string& message, const OnText& on_text) {
  return AskAfter(history_, message, on_text);
}

ChatAnswer ChatSession::Regenerate(const OnText& on_text) {
  if (!unanswered_.empty()) {
    return AskAfter(history_, std::string(unanswered_), on_text);
  }
  OrderedJson history = history_;
  history.erase(history.size() - 1);
  const auto message = history.back()["content"].get<std::string>();
  history.erase(history.size() - 1);
  ChatAnswer answer = AskAfter(std::move(history), message, on_text);
  unanswered_.clear();  // without a new answer, the old one stays in history_
  return answer;
}

ChatAnswer ChatSession::AskAfter(OrderedJson history,
                                 const std::string& message,
                                 const OnText& on_text) {
  history.push_back(Message("user", message));
  OrderedJson body = parameters_;
  body["messages"] = MessagesOf(history);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  ChatAnswer answer;
  OpenAiStream stream([&](const OpenAiStream::Text& text) {
    if (text.answer.empty()) {
      return;
    }
    answer.last_text_at = SteadyNow();
    if (answer.text.empty()) {
      answer.first_text_at = answer.last_text_at;
    }
    answer.text += text.answer;
    on_text(text.answer);
  });
  bool is_too_long = false;
  const absl::StatusOr<HttpResponse> call =
      client_.Stream({.method = "POST",
                      .target = server_.path + kTarget,
                      .headers = server_.headers,
                      .body = body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)},
                     kInfiniteFuture,
                     [&](const HttpResponse& head, std::string_view piece) {
                       is_too_long = answer.text.size() > kMaxAnswerBytes;
                       return !is_too_long && stream.Put(head, piece);
                     });
  answer.status =
      is_too_long
          ? Error(absl::StatusCode::kInternal,
                  "OPENAI_ANSWER",
                  absl::StrCat("the answer is too long (limit ", kMaxAnswerBytes, " bytes)"))
          : stream.Finish(call);
  answer.finish_reason = stream.finish_reason();
  answer.num_tokens = stream.num_output_tokens();
  const bool has_answer = answer.status.ok() || !answer.text.empty();
  unanswered_ = has_answer ? "" : message;
  if (has_answer) {
    history.push_back(Message("assistant", answer.text));
    history_ = std::move(history);
  }
  return answer;
}

}  // namespace quire
