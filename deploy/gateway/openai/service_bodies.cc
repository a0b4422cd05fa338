#include "deploy/gateway/openai/service_bodies.h"

#include <cstddef>
#include <utility>

#include "common/base/status_macros.h"
#include "common/json/json.h"
#include "deploy/gateway/openai/json_fields.h"
#include "deploy/gateway/openai/sampling_fields.h"

namespace quire {
namespace {

// Bounds the number of ids in a body of /detokenize.
constexpr size_t kMaxTokensOfBody = 1 << 20;

OrderedJson ModelJson(const v1::GetServerInfoResponse& info,
                      const std::string& id,
                      int64_t created) {
  return OrderedJson::object({{"id", id},
                              {"object", "model"},
                              {"created", created},
                              {"owned_by", "quire"},
                              {"root", info.model()},
                              {"parent", nullptr},
                              {"max_model_len", info.max_model_len_tokens()}});
}

absl::StatusOr<TokenizeBody> ParseTokenize(std::string_view body,
                                           bool is_chat,
                                           ContentFormat format) {
  QUIRE_ASSIGN_OR_RETURN(OrderedJson json, ParseObject(body));
  JsonFields fields(json);
  TokenizeBody parsed;
  parsed.model = ReadModel(fields);
  parsed.returns_token_texts = fields.Bool("return_token_strs").value_or(false);
  parsed.request.set_parse_special_tokens(true);
  if (is_chat || fields.Has("messages")) {
    parsed.chat = ReadChatPrompt(fields, format);
  } else if (std::optional<std::string> text = fields.Text("prompt")) {
    parsed.request.set_text(*std::move(text));
  } else {
    fields.Fail("MISSING_FIELD", "prompt", "must be set, unless messages is set");
  }
  parsed.request.set_add_special_tokens(
      fields.Bool("add_special_tokens").value_or(!parsed.chat.has_value()));
  QUIRE_RETURN_IF_ERROR(fields.status());
  return parsed;
}

}  // namespace

std::string ModelBody(const v1::GetServerInfoResponse& info,
                      const std::string& id,
                      int64_t created) {
  return ToText(ModelJson(info, id, created));
}

std::string ModelsBody(const v1::GetServerInfoResponse& info, int64_t created) {
  OrderedJson models = OrderedJson::array();
  for (const std::string& name : info.model_names()) {
    models.push_back(ModelJson(info, name, created));
  }
  return ToText(OrderedJson::object({{"object", "list"}, {"data", std::move(models)}}));
}

absl::StatusOr<TokenizeBody> ParseTokenizeBody(std::string_view body, ContentFormat format) {
  return ParseTokenize(body, /*is_chat=*/false, format);
}

absl::StatusOr<TokenizeBody> ParseApplyTemplateBody(std::string_view body, ContentFormat format) {
  return ParseTokenize(body, /*is_chat=*/true, format);
}

std::string TokenizeAnswer(const std::vector<int32_t>& tokens,
                           int32_t max_model_len_tokens,
                           const std::optional<std::vector<std::string>>& token_texts) {
  return ToText(OrderedJson::object(
      {{"count", tokens.size()},
       {"max_model_len", max_model_len_tokens},
       {"tokens", tokens},
       {"token_strs", token_texts.has_value() ? OrderedJson(*token_texts) : OrderedJson()}}));
}

std::string ApplyTemplateAnswer(std::string_view prompt) {
  return ToText(OrderedJson::object({{"prompt", prompt}}));
}

absl::StatusOr<DetokenizeBody> ParseDetokenizeBody(std::string_view body) {
  QUIRE_ASSIGN_OR_RETURN(OrderedJson json, ParseObject(body));
  JsonFields fields(json);
  DetokenizeBody parsed;
  parsed.model = ReadModel(fields);
  if (fields.Any("tokens") == nullptr) {
    fields.Fail("MISSING_FIELD", "tokens", "must be set");
  }
  const std::vector<int32_t> ids = fields.Ints("tokens", kMaxTokensOfBody);
  QUIRE_RETURN_IF_ERROR(fields.status());
  parsed.request.mutable_token_ids()->Add(ids.begin(), ids.end());
  return parsed;
}

std::string DetokenizeAnswer(std::string_view text) {
  return ToText(OrderedJson::object({{"prompt", text}}));
}

std::string VersionBody(std::string_view version) {
  return ToText(OrderedJson::object({{"version", version}}));
}

}  // namespace quire
