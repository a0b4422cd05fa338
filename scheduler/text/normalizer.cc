#include "scheduler/text/normalizer.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "scheduler/text/range_map.h"
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

// Returns the edits by which `rewrite` (a normal form, or lower case) changes the text. Rewrites
// the text in stretches, each from one ASCII character to the next, because an ASCII character
// never combines with characters before it. A stretch is cut at the borders of ranges, and each
// part is an edit. If characters combine across such a border, the whole stretch is one edit.
std::vector<TextEdit> EditsOf(std::string_view text,
                              std::span<const ByteRange> ranges,
                              const std::function<std::string(std::string_view)>& rewrite) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  std::vector<TextEdit> edits;
  size_t next_border = 0;  // 2 * i: ranges[i].begin; 2 * i + 1: ranges[i].end
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    for (end = begin + 1; end < text.size() && byte(end) >= 0x80; ++end) {
    }
    std::vector<TextEdit> pieces;
    std::string rewritten;
    const auto add_piece = [&](size_t to) {
      const size_t from = pieces.empty() ? begin : pieces.back().end;
      const std::string piece = rewrite(text.substr(from, to - from));
      pieces.push_back({from, to, piece.size()});
      rewritten += piece;
    };
    for (; next_border < 2 * ranges.size(); ++next_border) {
      const ByteRange& range = ranges[next_border / 2];
      const size_t border = next_border % 2 == 0 ? range.begin : range.end;
      if (border >= end) {
        break;
      }
      const bool is_in_character = (byte(border) & 0xC0) == 0x80;
      if (border > begin && !is_in_character) {
        add_piece(border);
      }
    }
    add_piece(end);
    const std::string whole = rewrite(text.substr(begin, end - begin));
    if (rewritten == whole) {
      edits.insert(edits.end(), pieces.begin(), pieces.end());
    } else {  // characters combined across a border
      edits.push_back({begin, end, whole.size()});
    }
  }
  return edits;
}

// Returns the part of the text that stripping keeps.
ByteRange StripSpace(std::string_view text, bool left, bool right) {
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
  return {left ? begin : 0, right ? end : text.size()};
}

void Move(std::span<const TextEdit> edits, std::vector<ByteRange>* ranges) {
  if (ranges != nullptr) {
    *ranges = MapRanges(edits, *ranges);
  }
}

// Applies a normal form or lower case to the text, and moves the ranges unless `ranges` is null.
void Rewrite(const std::function<std::string(std::string_view)>& rewrite,
             std::string* text,
             std::vector<ByteRange>* ranges) {
  if (ranges != nullptr) {
    Move(EditsOf(*text, *ranges, rewrite), ranges);
  }
  *text = rewrite(*text);
}

absl::Status ReplaceMatches(const std::vector<TextSpan>& spans,
                            const std::string& to,
                            TextBudget* budget,
                            std::string* text,
                            std::vector<ByteRange>* ranges) {
  std::string replaced;
  std::vector<TextEdit> edits;
  replaced.reserve(text->size());
  for (const TextSpan& span : spans) {
    const std::string_view piece =
        span.is_match ? std::string_view(to)
                      : std::string_view(*text).substr(span.begin, span.end - span.begin);
    if (!budget->HasRoomFor(replaced.size() + piece.size())) {
      return budget->status();
    }
    replaced += piece;
    if (span.is_match && ranges != nullptr) {
      edits.push_back({span.begin, span.end, piece.size()});
    }
  }
  Move(edits, ranges);
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

absl::Status Normalizer::Apply(TextBudget* budget,
                               std::string* text,
                               std::vector<ByteRange>* ranges) const {
  for (const Step& step : steps_) {
    if (!budget->Spend(text->size())) {
      return budget->status();
    }
    QUIRE_RETURN_IF_ERROR(ApplyStep(step, budget, text, ranges));
    if (!budget->HasRoomFor(text->size())) {
      return budget->status();
    }
  }
  return absl::OkStatus();
}

absl::Status Normalizer::ApplyStep(const Step& step,
                                   TextBudget* budget,
                                   std::string* text,
                                   std::vector<ByteRange>* ranges) {
  std::vector<TextSpan> spans;
  if (const auto* form = std::get_if<NormalizationForm>(&step)) {
    Rewrite([form](std::string_view part) { return Normalize(*form, part); }, text, ranges);
  } else if (std::holds_alternative<Lowercase>(step)) {
    Rewrite(ToLowerCase, text, ranges);
  } else if (const auto* strip = std::get_if<Strip>(&step)) {
    const ByteRange left_over = StripSpace(*text, strip->left, strip->right);
    Move(std::array<TextEdit, 2>{{{0, left_over.begin, 0}, {left_over.end, text->size(), 0}}},
         ranges);
    *text = text->substr(left_over.begin, left_over.end - left_over.begin);
  } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
    if (!text->empty()) {
      Move(std::array<TextEdit, 1>{{{0, 0, prepend->prefix.size()}}}, ranges);
      text->insert(0, prepend->prefix);
    }
  } else if (const auto* literal = std::get_if<ReplaceLiteral>(&step)) {
    FindLiteral(literal->from, *text, &spans);
    return ReplaceMatches(spans, literal->to, budget, text, ranges);
  } else if (const auto* pattern = std::get_if<ReplacePattern>(&step)) {
    QUIRE_RETURN_IF_ERROR(pattern->from.FindAll(*text, budget, &spans));
    return ReplaceMatches(spans, pattern->to, budget, text, ranges);
  }
  return absl::OkStatus();
}

}  // namespace quire
