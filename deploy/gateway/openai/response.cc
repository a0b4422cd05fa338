#include "deploy/gateway/openai/response.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "deploy/gateway/openai/json_fields.h"

namespace quire {
namespace {

std::string NameById(int32_t token_id) { return absl::StrCat("token_id:", token_id); }

OrderedJson Usage(int64_t prompt_tokens, int64_t completion_tokens) {
  return OrderedJson::object({{"prompt_tokens", prompt_tokens},
                              {"total_tokens", prompt_tokens + completion_tokens},
                              {"completion_tokens", completion_tokens}});
}

}  // namespace

Response::Response(AnswerOptions options, bool echoes_tokens, int64_t created, TokenText token_text)
    : options_(std::move(options)),
      answer_(options_, echoes_tokens),
      created_(created),
      token_text_(std::move(token_text)),
      token_name_(options_.names_tokens_by_id ? NameById : token_text_) {
  if (!options_.stream) {
    parts_.resize(options_.prompts.size() * static_cast<size_t>(options_.num_choices_per_prompt));
  }
}

std::vector<std::string> Response::Take(int32_t prompt, const v1::GenerateResponse& message) {
  const bool has_started = answer_.has_started(prompt);
  std::optional<ChoicePart> part = answer_.Take(prompt, message);
  std::vector<std::string> events;
  if (!options_.stream) {
    if (part.has_value()) {
      auto& whole = parts_[part->index];
      whole.Append(*std::move(part));
    }
    return events;
  }
  if (!has_started && answer_.has_started(prompt)) {
    for (const OrderedJson& event : FirstEvents(prompt)) {
      events.push_back(ToText(event));
    }
  }
  if (part.has_value() && IsWorthAnEvent(*part)) {
    const int64_t completion_tokens = answer_.num_output_tokens(part->index);
    events.push_back(
        ToText(Event(OrderedJson::array({ChoiceJson(*part)}), prompt, completion_tokens)));
  }
  return events;
}

std::vector<std::string> Response::Finish() {
  if (options_.stream && !options_.include_usage) {
    return {};
  }
  OrderedJson choices = OrderedJson::array();
  for (const ChoicePart& part : parts_) {
    choices.push_back(ChoiceJson(part));
  }
  OrderedJson body = Envelope(std::move(choices));
  OrderedJson usage = Usage(answer_.num_prompt_tokens(), answer_.num_output_tokens());
  AddMember("prompt_tokens_details",
            OrderedJson::object({{"cached_tokens", answer_.num_cached_prompt_tokens()}}),
            usage);
  AddMember("usage", std::move(usage), body);
  if (!options_.stream) {
    AddWholeFields(body);
  }
  return {ToText(body)};
}

bool Response::IsWorthAnEvent(const ChoicePart& part) const {
  return !part.text.empty() || !part.scored_tokens.empty() || part.has_ended() ||
         options_.returns_token_ids || options_.continuous_usage;
}

OrderedJson Response::Envelope(OrderedJson choices) const {
  OrderedJson body = OrderedJson::object();
  body.get_ref<OrderedJson::object_t&>().reserve(10);  // growth would copy the choices
  AddMember("id", options_.id, body);
  AddMember("object", object_name(), body);
  AddMember("created", created_, body);
  AddMember("model", options_.model, body);
  AddMember("choices", std::move(choices), body);
  if (!answer_.determinism_fingerprint().empty()) {
    AddMember("system_fingerprint", answer_.determinism_fingerprint(), body);
  }
  return body;
}

OrderedJson Response::Event(OrderedJson choices, int32_t prompt, int64_t completion_tokens) {
  OrderedJson event = Envelope(std::move(choices));
  if (options_.continuous_usage) {
    AddMember("usage", Usage(answer_.num_prompt_tokens(prompt), completion_tokens), event);
  } else if (options_.include_usage) {
    AddMember("usage", nullptr, event);  // as OpenAI; the last event has the usage
  }
  return event;
}

void Response::AddEnd(const ChoicePart& part, OrderedJson& choice) const {
  OrderedJson finish_reason;
  OrderedJson stop_reason;
  if (part.has_ended()) {
    finish_reason = part.finish_reason == v1::FINISH_REASON_LENGTH ? "length" : "stop";
  }
  if (!part.matched_stop.empty()) {
    stop_reason = part.matched_stop;
  } else if (part.stop_token.has_value()) {
    stop_reason = *part.stop_token;
  }
  AddMember("finish_reason", std::move(finish_reason), choice);
  AddMember("stop_reason", std::move(stop_reason), choice);
  if (options_.returns_token_ids) {
    AddMember("token_ids", part.token_ids, choice);
  }
}

}  // namespace quire
