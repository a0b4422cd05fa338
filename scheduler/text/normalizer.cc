#include "scheduler/text/normalizer.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

std::optional<NormalizationForm> FormNamed(std::string_view type) {
  if (type == "NFC") {
    return NormalizationForm::kNfc;
  }
  if (type == "NFD") {
    return NormalizationForm::kNfd;
  }
  if (type == "NFKC") {
    return NormalizationForm::kNfkc;
  }
  if (type == "NFKD") {
    return NormalizationForm::kNfkd;
  }
  return std::nullopt;
}

std::string_view StripSpace(std::string_view text, bool left, bool right) {
  size_t begin = 0;
  size_t end = 0;  // end of the last character that is not white space
  bool inside = false;
  size_t position = 0;
  while (position < text.size()) {
    size_t start = position;
    if (!IsWhiteSpace(DecodeValidUtf8(text, &position))) {
      begin = inside ? begin : start;
      inside = true;
      end = position;
    }
  }
  if (!inside) {
    return {};
  }
  begin = left ? begin : 0;
  end = right ? end : text.size();
  return text.substr(begin, end - begin);
}

absl::Status ReplaceMatches(const std::vector<TextSpan>& spans,
                            const std::string& to,
                            TextBudget* budget,
                            std::string* text) {
  std::string replaced;
  replaced.reserve(text->size());
  for (const TextSpan& span : spans) {
    const std::string_view piece =
        span.is_match ? std::string_view(to)
                      : std::string_view(*text).substr(span.begin, span.end - span.begin);
    if (!budget->HasRoomFor(replaced.size() + piece.size())) {
      return budget->status();
    }
    replaced += piece;
  }
  *text = std::move(replaced);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Parse(const JsonNode& node) {
  Normalizer normalizer;
  QUIRE_ASSIGN_OR_RETURN(std::vector<JsonNode> leaves, FlattenSequence(node, "normalizers"));
  for (const JsonNode& leaf : leaves) {
    QUIRE_ASSIGN_OR_RETURN(Step step, ParseStep(leaf));
    normalizer.steps_.push_back(std::move(step));
  }
  return normalizer;
}

absl::StatusOr<Normalizer::Step> Normalizer::ParseStep(const JsonNode& node) {
  QUIRE_ASSIGN_OR_RETURN(std::string type, node.GetString("type"));
  if (std::optional<NormalizationForm> form = FormNamed(type); form.has_value()) {
    QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type"}));
    return Step(*form);
  }
  if (type == "Lowercase") {
    QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type"}));
    return Step(Lowercase{});
  }
  if (type == "Strip") {
    QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type", "strip_left", "strip_right"}));
    QUIRE_ASSIGN_OR_RETURN(bool left, node.GetBool("strip_left"));
    QUIRE_ASSIGN_OR_RETURN(bool right, node.GetBool("strip_right"));
    return Step(Strip{left, right});
  }
  if (type == "Prepend") {
    QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type", "prepend"}));
    QUIRE_ASSIGN_OR_RETURN(std::string prefix, node.GetString("prepend"));
    return Step(Prepend{std::move(prefix)});
  }
  if (type == "Replace") {
    return ParseReplace(node);
  }
  return node.Error("type of normalizer is not supported", type);
}

absl::StatusOr<Normalizer::Step> Normalizer::ParseReplace(const JsonNode& node) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type", "pattern", "content"}));
  QUIRE_ASSIGN_OR_RETURN(JsonNode pattern, node.Get("pattern"));
  QUIRE_RETURN_IF_ERROR(pattern.CheckKeys({"String", "Regex"}));
  QUIRE_ASSIGN_OR_RETURN(std::string to, node.GetString("content"));
  if (pattern.Has("Regex")) {
    QUIRE_ASSIGN_OR_RETURN(std::string regex, pattern.GetString("Regex"));
    absl::StatusOr<Pattern> compiled = Pattern::Compile(regex);
    if (!compiled.ok()) {
      return node.Error(ToStd(compiled.status().message()));
    }
    return Step(ReplacePattern{std::move(*compiled), std::move(to)});
  }
  QUIRE_ASSIGN_OR_RETURN(std::string from, pattern.GetString("String"));
  if (from.empty() || from.size() > kMaxLiteralBytes) {
    return pattern.Error(absl::StrCat("String must have 1 to ", kMaxLiteralBytes, " bytes"));
  }
  return Step(ReplaceLiteral{std::move(from), std::move(to)});
}

absl::Status Normalizer::Apply(TextBudget* budget, std::string* text) const {
  for (const Step& step : steps_) {
    if (!budget->Spend(text->size())) {
      return budget->status();
    }
    QUIRE_RETURN_IF_ERROR(ApplyStep(step, budget, text));
    if (!budget->HasRoomFor(text->size())) {
      return budget->status();
    }
  }
  return absl::OkStatus();
}

absl::Status Normalizer::ApplyStep(const Step& step, TextBudget* budget, std::string* text) {
  std::vector<TextSpan> spans;
  if (const auto* form = std::get_if<NormalizationForm>(&step)) {
    *text = Normalize(*form, *text);
  } else if (std::holds_alternative<Lowercase>(step)) {
    *text = ToLowerCase(*text);
  } else if (const auto* strip = std::get_if<Strip>(&step)) {
    *text = std::string(StripSpace(*text, strip->left, strip->right));
  } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
    if (!text->empty()) {
      text->insert(0, prepend->prefix);
    }
  } else if (const auto* literal = std::get_if<ReplaceLiteral>(&step)) {
    FindLiteral(literal->from, *text, &spans);
    return ReplaceMatches(spans, literal->to, budget, text);
  } else if (const auto* pattern = std::get_if<ReplacePattern>(&step)) {
    QUIRE_RETURN_IF_ERROR(pattern->from.FindAll(*text, budget, &spans));
    return ReplaceMatches(spans, pattern->to, budget, text);
  }
  return absl::OkStatus();
}

}  // namespace quire
