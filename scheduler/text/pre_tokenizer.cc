#include "scheduler/text/pre_tokenizer.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "scheduler/text/unicode.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

void AddSpan(size_t begin, size_t end, bool is_match, std::vector<TextSpan>* spans) {
  if (begin < end) {
    spans->push_back({begin, end, is_match});
  }
}

// Appends spans that cover text. Every character that is_member accepts is a separate match.
template <typename IsMember>
void FindCharacters(IsMember is_member, std::string_view text, std::vector<TextSpan>* spans) {
  size_t done = 0;
  size_t position = 0;
  while (position < text.size()) {
    size_t start = position;
    if (is_member(DecodeValidUtf8(text, &position))) {
      AddSpan(done, start, false, spans);
      AddSpan(start, position, true, spans);
      done = position;
    }
  }
  AddSpan(done, text.size(), false, spans);
}

// \w+|[^\w\s]+ : runs of word characters and runs of symbols are matches.
void FindWordsAndSymbols(std::string_view text, std::vector<TextSpan>* spans) {
  enum class Kind { kWord, kSymbol, kSpace };
  auto kind_of = [](char32_t c) {
    return IsWordCharacter(c) ? Kind::kWord : IsWhiteSpace(c) ? Kind::kSpace : Kind::kSymbol;
  };
  size_t start = 0;
  size_t position = 0;
  while (position < text.size()) {
    start = position;
    Kind kind = kind_of(DecodeValidUtf8(text, &position));
    size_t next = position;
    while (next < text.size() && kind_of(DecodeValidUtf8(text, &next)) == kind) {
      position = next;
    }
    AddSpan(start, position, kind != Kind::kSpace, spans);
  }
}

// Joins each match with the span before it, unless that span is a match, too.
void MergeForward(const std::vector<TextSpan>& matches, std::vector<TextSpan>* spans) {
  size_t first = spans->size();
  bool previous_match = false;
  for (const TextSpan& match : matches) {
    if (match.is_match && !previous_match && spans->size() > first) {
      spans->back().end = match.end;
    } else {
      spans->push_back(match);
    }
    previous_match = match.is_match;
  }
}

// Joins each match with the span after it, unless that span is a match, too.
void MergeBackward(const std::vector<TextSpan>& matches, std::vector<TextSpan>* spans) {
  size_t first = spans->size();
  bool previous_match = false;
  for (auto match = matches.rbegin(); match != matches.rend(); ++match) {
    if (match->is_match && !previous_match && spans->size() > first) {
      spans->back().begin = match->begin;
    } else {
      spans->push_back(*match);
    }
    previous_match = match->is_match;
  }
  std::reverse(spans->begin() + static_cast<std::ptrdiff_t>(first), spans->end());
}

void MergeEqual(const std::vector<TextSpan>& matches, std::vector<TextSpan>* spans) {
  size_t first = spans->size();
  for (const TextSpan& match : matches) {
    if (spans->size() > first && spans->back().is_match == match.is_match) {
      spans->back().end = match.end;
    } else {
      spans->push_back(match);
    }
  }
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Parse(const JsonNode& node) {
  PreTokenizer pre_tokenizer;
  QUIRE_ASSIGN_OR_RETURN(std::vector<JsonNode> leaves, FlattenSequence(node, "pretokenizers"));
  for (const JsonNode& leaf : leaves) {
    if (pre_tokenizer.is_byte_level_) {
      return leaf.Error("must not come after ByteLevel");
    }
    QUIRE_RETURN_IF_ERROR(pre_tokenizer.AddLeaf(leaf));
  }
  return pre_tokenizer;
}

absl::Status PreTokenizer::AddLeaf(const JsonNode& node) {
  QUIRE_ASSIGN_OR_RETURN(std::string type, node.GetString("type"));
  if (type == "ByteLevel") {
    return AddByteLevel(node);
  }
  if (type == "Metaspace") {
    return AddMetaspace(node);
  }
  if (type == "Split") {
    return AddSplit(node);
  }
  if (type == "Digits") {
    QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type", "individual_digits"}));
    QUIRE_ASSIGN_OR_RETURN(bool individual, node.GetBool("individual_digits"));
    Behavior behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
    steps_.push_back(SplitStep{CharSet::kNumber, behavior, false});
    return absl::OkStatus();
  }
  if (type == "WhitespaceSplit") {
    QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type"}));
    steps_.push_back(SplitStep{CharSet::kWhiteSpace, Behavior::kRemoved, false});
    return absl::OkStatus();
  }
  if (type == "Whitespace") {
    QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type"}));
    steps_.push_back(SplitStep{WordsAndSymbols{}, Behavior::kRemoved, true});
    return absl::OkStatus();
  }
  return node.Error("type of pre_tokenizer is not supported", type);
}

absl::Status PreTokenizer::AddByteLevel(const JsonNode& node) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  QUIRE_ASSIGN_OR_RETURN(bool add_prefix_space, node.GetBool("add_prefix_space"));
  QUIRE_ASSIGN_OR_RETURN(bool use_regex, node.GetBool("use_regex", true));
  if (add_prefix_space) {
    steps_.push_back(PrefixStep{" ", false, PrefixStep::When::kAlways});
  }
  if (use_regex) {
    steps_.push_back(SplitStep{WordSplitter::Gpt2(), Behavior::kIsolated, false});
  }
  is_byte_level_ = true;
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddMetaspace(const JsonNode& node) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys(
      {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}));
  QUIRE_ASSIGN_OR_RETURN(std::string replacement, node.GetString("replacement"));
  if (replacement.empty() || NextUtf8(replacement).length != replacement.size()) {
    return node.Error("replacement must be one character");
  }
  std::string scheme = "always";
  if (node.Has("prepend_scheme")) {
    QUIRE_ASSIGN_OR_RETURN(scheme, node.GetString("prepend_scheme"));
  }
  QUIRE_ASSIGN_OR_RETURN(bool add_prefix_space, node.GetBool("add_prefix_space", true));
  if (!add_prefix_space && scheme != "never") {
    return node.Error("add_prefix_space disagrees with prepend_scheme");
  }
  QUIRE_ASSIGN_OR_RETURN(bool split, node.GetBool("split", true));
  PrefixStep step{replacement, true, PrefixStep::When::kAlways};
  if (scheme == "first") {
    step.when = PrefixStep::When::kFirst;
  } else if (scheme == "never") {
    step.when = PrefixStep::When::kNever;
  } else if (scheme != "always") {
    return node.Error("prepend_scheme must be always, first or never", scheme);
  }
  steps_.push_back(std::move(step));
  if (split) {
    steps_.push_back(SplitStep{Literal{replacement}, Behavior::kMergedWithNext, false});
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddSplit(const JsonNode& node) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type", "pattern", "behavior", "invert"}));
  QUIRE_ASSIGN_OR_RETURN(Matcher matcher, ParseMatcher(node));
  QUIRE_ASSIGN_OR_RETURN(Behavior behavior, ParseBehavior(node));
  QUIRE_ASSIGN_OR_RETURN(bool invert, node.GetBool("invert"));
  steps_.push_back(SplitStep{std::move(matcher), behavior, invert});
  return absl::OkStatus();
}

absl::StatusOr<PreTokenizer::Behavior> PreTokenizer::ParseBehavior(const JsonNode& node) {
  QUIRE_ASSIGN_OR_RETURN(std::string name, node.GetString("behavior"));
  if (name == "Isolated") {
    return Behavior::kIsolated;
  }
  if (name == "Removed") {
    return Behavior::kRemoved;
  }
  if (name == "Contiguous") {
    return Behavior::kContiguous;
  }
  if (name == "MergedWithPrevious") {
    return Behavior::kMergedWithPrevious;
  }
  if (name == "MergedWithNext") {
    return Behavior::kMergedWithNext;
  }
  return node.Error(
      "behavior must be Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext", name);
}

absl::StatusOr<PreTokenizer::Matcher> PreTokenizer::ParseMatcher(const JsonNode& node) {
  QUIRE_ASSIGN_OR_RETURN(JsonNode pattern, node.Get("pattern"));
  QUIRE_RETURN_IF_ERROR(pattern.CheckKeys({"String", "Regex"}));
  if (pattern.Has("String")) {
    QUIRE_ASSIGN_OR_RETURN(std::string literal, pattern.GetString("String"));
    if (literal.empty() || literal.size() > kMaxLiteralBytes) {
      return pattern.Error(absl::StrCat("String must have 1 to ", kMaxLiteralBytes, " bytes"));
    }
    return Matcher(Literal{std::move(literal)});
  }
  QUIRE_ASSIGN_OR_RETURN(std::string regex, pattern.GetString("Regex"));
  if (std::optional<WordSplitter> words = WordSplitter::ForPattern(regex); words.has_value()) {
    return Matcher(*words);
  }
  absl::StatusOr<Pattern> compiled = Pattern::Compile(regex);
  if (!compiled.ok()) {
    return node.Error(ToStd(compiled.status().message()));
  }
  return Matcher(std::move(*compiled));
}

absl::Status PreTokenizer::Split(std::string_view text,
                                 bool at_text_start,
                                 TextBudget* budget,
                                 PieceList* pieces) const {
  pieces->text = text;
  pieces->spans.assign(1, {0, text.size(), false});
  for (const Step& step : steps_) {
    if (!budget->Spend(pieces->text.size())) {
      return budget->status();
    }
    if (const auto* split = std::get_if<SplitStep>(&step)) {
      QUIRE_RETURN_IF_ERROR(Run(*split, budget, pieces));
    } else {
      QUIRE_RETURN_IF_ERROR(Run(std::get<PrefixStep>(step), at_text_start, budget, pieces));
    }
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::Run(const SplitStep& step, TextBudget* budget, PieceList* pieces) {
  std::vector<TextSpan>& refined = pieces->scratch_spans;
  refined.clear();
  for (const TextSpan& span : pieces->spans) {
    std::vector<TextSpan>& matches = pieces->scratch_matches;
    matches.clear();
    QUIRE_RETURN_IF_ERROR(FindMatches(step.matcher, pieces->Piece(span), budget, &matches));
    if (step.invert) {
      for (TextSpan& match : matches) {
        match.is_match = !match.is_match;
      }
    }
    Combine(step.behavior, matches, span.begin, &refined);
  }
  pieces->spans.swap(refined);
  return absl::OkStatus();
}

absl::Status PreTokenizer::Run(const PrefixStep& step,
                               bool at_text_start,
                               TextBudget* budget,
                               PieceList* pieces) {
  std::string rewritten;
  rewritten.reserve(pieces->text.size() + pieces->text.size() / 4 + step.prefix.size());
  for (TextSpan& span : pieces->spans) {
    std::string_view piece = pieces->Piece(span);
    bool is_first = at_text_start && span.begin == 0;
    size_t begin = rewritten.size();
    bool has_prefix =
        piece.starts_with(step.prefix) || (step.replace_spaces && piece.starts_with(' '));
    if (!has_prefix && (step.when == PrefixStep::When::kAlways ||
                        (step.when == PrefixStep::When::kFirst && is_first))) {
      rewritten += step.prefix;
    }
    if (step.replace_spaces) {
      for (char c : piece) {
        if (c == ' ') {
          rewritten += step.prefix;
        } else {
          rewritten += c;
        }
      }
    } else {
      rewritten += piece;
    }
    span = {begin, rewritten.size(), span.is_match};
    if (!budget->HasRoomFor(rewritten.size())) {
      return budget->status();
    }
  }
  pieces->buffer = std::move(rewritten);
  pieces->text = pieces->buffer;
  return absl::OkStatus();
}

absl::Status PreTokenizer::FindMatches(const Matcher& matcher,
                                       std::string_view text,
                                       TextBudget* budget,
                                       std::vector<TextSpan>* matches) {
  if (const auto* words = std::get_if<WordSplitter>(&matcher)) {
    words->FindAll(text, matches);
  } else if (const auto* pattern = std::get_if<Pattern>(&matcher)) {
    return pattern->FindAll(text, budget, matches);
  } else if (const auto* literal = std::get_if<Literal>(&matcher)) {
    FindLiteral(literal->text, text, matches);
  } else if (std::holds_alternative<WordsAndSymbols>(matcher)) {
    FindWordsAndSymbols(text, matches);
  } else if (std::get<CharSet>(matcher) == CharSet::kNumber) {
    FindCharacters([](char32_t c) { return ClassOf(c) == CharClass::kNumber; }, text, matches);
  } else {
    FindCharacters(IsWhiteSpace, text, matches);
  }
  return absl::OkStatus();
}

void PreTokenizer::Combine(Behavior behavior,
                           const std::vector<TextSpan>& matches,
                           size_t offset,
                           std::vector<TextSpan>* spans) {
  size_t first = spans->size();
  switch (behavior) {
    case Behavior::kIsolated:
      spans->insert(spans->end(), matches.begin(), matches.end());
      break;
    case Behavior::kRemoved:
      std::copy_if(
          matches.begin(), matches.end(), std::back_inserter(*spans), [](const TextSpan& match) {
            return !match.is_match;
          });
      break;
    case Behavior::kContiguous:
      MergeEqual(matches, spans);
      break;
    case Behavior::kMergedWithPrevious:
      MergeForward(matches, spans);
      break;
    case Behavior::kMergedWithNext:
      MergeBackward(matches, spans);
      break;
  }
  for (size_t i = first; i < spans->size(); ++i) {
    (*spans)[i].begin += offset;
    (*spans)[i].end += offset;
  }
}

}  // namespace quire
