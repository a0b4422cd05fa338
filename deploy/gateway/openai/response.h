// Response makes the JSON texts that answer one HTTP request, from the messages of its prompts'
// streams. An answer that is not streamed is one text; a streamed answer has a text for each event.
// The caller adds "data: " and "[DONE]".
//
// Thread safety: one caller at a time.
// Cost:          a streamed answer keeps a few bytes for each choice and the log-probabilities of
//                echoed prompts; any other answer keeps everything until Finish.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_RESPONSE_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_RESPONSE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/v1/generation.pb.h"

#include "common/json/json.h"
#include "deploy/gateway/openai/answer.h"
#include "deploy/gateway/openai/answer_options.h"
#include "deploy/gateway/openai/logprobs_json.h"

namespace quire {

class Response {
 public:
  virtual ~Response() = default;
  Response(const Response&) = delete;
  Response& operator=(const Response&) = delete;

  // Takes the next message of a prompt's stream. Returns the events to send now, or none if the
  // answer is not streamed.
  std::vector<std::string> Take(int32_t prompt, const v1::GenerateResponse& message);

  // True if all choices have ended. A stream that ends earlier is an error of the server.
  bool has_ended() const { return answer_.has_ended(); }

  std::string_view max_tokens_name() const { return options_.max_tokens_name; }

  // Returns the last texts: the whole answer, or the event with the usage if the client asked for
  // the usage. Call once. REQUIRES: has_ended().
  std::vector<std::string> Finish();

 protected:
  // `created`: seconds since 1970. `token_text` is called for tokens with log-probabilities.
  Response(AnswerOptions options, bool echoes_tokens, int64_t created, TokenText token_text);

  // Returns the events that precede the choices of this prompt.
  virtual std::vector<OrderedJson> FirstEvents(int32_t prompt) = 0;
  // Returns the choice for one event, or for the whole answer.
  virtual OrderedJson ChoiceJson(const ChoicePart& part) = 0;
  // Returns the field `object` of an event, or of the whole answer.
  virtual std::string_view object_name() const = 0;
  // Adds the fields that only a whole answer has.
  virtual void AddWholeFields(OrderedJson& /*body*/) {}

  // Returns an event with these choices. `completion_tokens` is for the event's usage, if the
  // client asked for continuous usage.
  OrderedJson Event(OrderedJson choices, int32_t prompt, int64_t completion_tokens);
  // Adds finish_reason, stop_reason and token_ids.
  void AddEnd(const ChoicePart& part, OrderedJson& choice) const;

  const AnswerOptions& options() const { return options_; }
  const Answer& answer() const { return answer_; }
  const TokenText& token_text() const { return token_text_; }
  // Like token_text(), but returns "token_id:5" for token 5 if the client asked for ids as names.
  const TokenText& token_name() const { return token_name_; }

 private:
  // Returns true if an event with this part tells the client anything.
  bool IsWorthAnEvent(const ChoicePart& part) const;
  OrderedJson Envelope(OrderedJson choices) const;

  const AnswerOptions options_;
  Answer answer_;
  const int64_t created_;
  const TokenText token_text_;
  const TokenText token_name_;
  std::vector<ChoicePart> parts_;  // one for each choice, if the answer is not streamed
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_RESPONSE_H_
