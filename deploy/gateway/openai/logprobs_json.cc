#include "deploy/gateway/openai/logprobs_json.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "proto/v1/types.pb.h"

#include "deploy/gateway/openai/json_fields.h"

namespace quire {
namespace {

double Finite(float logprob) { return std::max(double{logprob}, -9999.0); }

OrderedJson ChatToken(int32_t id, double logprob, const TokenText& token_text) {
  const std::string text = token_text(id);
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  return OrderedJson::object({{"token", text}, {"logprob", logprob}, {"bytes", std::move(bytes)}});
}

OrderedJson TopOf(const ScoredToken& token, const std::string& text, const TokenText& token_text) {
  OrderedJson top = OrderedJson::object();
  top[ToKey(text)] = Finite(token.logprobs->logprob());
  for (const v1::TokenLogprob& other : token.logprobs->top()) {
    // Tokens come in the order of their probability. emplace keeps an existing entry, so the
    // likelier of two tokens with one text wins.
    top.emplace(ToKey(token_text(other.token_id())), Finite(other.logprob()));
  }
  return top;
}

OrderedJson RankedToken(int32_t id,
                        float logprob,
                        std::optional<int> rank,
                        const TokenText& token_text) {
  return OrderedJson::object({{"logprob", Finite(logprob)},
                              {"rank", rank.has_value() ? OrderedJson(*rank) : OrderedJson()},
                              {"decoded_token", token_text(id)}});
}

}  // namespace

OrderedJson CompletionLogprobs(const std::vector<ScoredToken>& tokens,
                               const TokenText& token_text,
                               CharacterCounter* characters) {
  OrderedJson texts = OrderedJson::array();
  OrderedJson logprobs = OrderedJson::array();
  OrderedJson tops = OrderedJson::array();
  OrderedJson offsets = OrderedJson::array();
  for (const ScoredToken& token : tokens) {
    std::string text = token_text(token.id);
    const bool is_scored = token.logprobs.has_value();
    logprobs.push_back(is_scored ? OrderedJson(Finite(token.logprobs->logprob())) : OrderedJson());
    tops.push_back(is_scored ? TopOf(token, text, token_text) : OrderedJson());
    offsets.push_back(characters->num_characters());
    characters->Add(text);
    texts.push_back(std::move(text));
  }
  return OrderedJson::object({{"tokens", std::move(texts)},
                              {"token_logprobs", std::move(logprobs)},
                              {"top_logprobs", std::move(tops)},
                              {"text_offset", std::move(offsets)}});
}

OrderedJson ChatLogprobs(const std::vector<ScoredToken>& tokens, const TokenText& token_text) {
  OrderedJson content = OrderedJson::array();
  for (const ScoredToken& token : tokens) {
    const float logprob = token.logprobs.has_value() ? token.logprobs->logprob() : -9999.0F;
    OrderedJson entry = ChatToken(token.id, Finite(logprob), token_text);
    OrderedJson top = OrderedJson::array();
    if (token.logprobs.has_value()) {
      for (const v1::TokenLogprob& other : token.logprobs->top()) {
        top.push_back(ChatToken(other.token_id(), Finite(other.logprob()), token_text));
      }
    }
    AddMember("top_logprobs", std::move(top), entry);
    content.push_back(std::move(entry));
  }
  return OrderedJson::object({{"content", std::move(content)}});
}

OrderedJson PromptLogprobs(const std::vector<ScoredToken>& tokens, const TokenText& token_text) {
  OrderedJson positions = OrderedJson::array();
  for (const ScoredToken& token : tokens) {
    if (!token.logprobs.has_value()) {
      positions.push_back(nullptr);
      continue;
    }
    const auto& top = token.logprobs->top();
    const auto own = std::find_if(
        top.begin(), top.end(), [&](const auto& other) { return other.token_id() == token.id; });
    const auto own_rank = own == top.end()
                              ? std::nullopt
                              : std::make_optional(static_cast<int>(own - top.begin()) + 1);
    OrderedJson position = OrderedJson::object();
    AddMember(absl::StrCat(token.id),
              RankedToken(token.id, token.logprobs->logprob(), own_rank, token_text),
              position);
    for (int i = 0; i < top.size(); ++i) {
      if (top[i].token_id() != token.id) {
        AddMember(absl::StrCat(top[i].token_id()),
                  RankedToken(top[i].token_id(), top[i].logprob(), i + 1, token_text),
                  position);
      }
    }
    positions.push_back(std::move(position));
  }
  return positions;
}

}  // namespace quire
