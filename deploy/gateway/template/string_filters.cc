#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "deploy/gateway/template/builtins.h"
#include "deploy/gateway/template/format.h"
#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/python_text.h"
#include "deploy/gateway/template/unicode.h"

namespace quire {
namespace {

// Runs a string method on the text of the value.
Value OnText(Heap& heap, Arguments& a, std::string_view method) {
  a.positional[0] = ToText(heap, a.positional[0]);
  const bool is_markup = a.positional[0].as<String>().is_markup;
  Value result = FindMethod(a.positional[0], method)->run(heap, a);
  if (is_markup && result.is_string()) {
    result.as<String>().is_markup = true;
  }
  return result;
}

Value Trim(Heap& heap, Arguments& a) {
  return StripText(heap, ToText(heap, a.positional[0]), a.positional[1], true, true);
}

Value Replace(Heap& heap, Arguments& a) {
  for (size_t i = 0; i < 3; ++i) {
    a.positional[i] = ToText(heap, a.positional[i]);
  }
  const bool is_counted = !a.positional[3].is(Kind::kNone);
  return ReplaceText(heap,
                     a.positional[0],
                     a.positional[1].text(),
                     a.positional[2],
                     is_counted ? IntegerOr(heap, a.positional[3], -1) : -1);
}

// Makes the first letter of each word upper case and all other letters lower case. A word begins
// after a space, '-' or an opening bracket.
Value Title(Heap& heap, Arguments& a) {
  const Value text = ToText(heap, a.positional[0]);
  heap.budget().SpendOnText(16 * text.text().size());
  TextBuilder builder(heap);
  builder.set_marks_all(text.as<String>().has_client_text());
  const auto is_separator = [](char32_t c) {
    return IsPythonSpace(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  };
  for (std::string_view rest = text.text(); !rest.empty() && heap.budget().Spend();) {
    const std::string_view word = rest;
    const bool is_gap = is_separator(TakeCodePoint(rest));
    const size_t first_size = word.size() - rest.size();
    for (std::string_view after = rest; !after.empty(); rest = after) {
      if (is_separator(TakeCodePoint(after)) != is_gap) {
        break;
      }
    }
    builder.AppendOwn(ChangeCase(word.substr(0, first_size), LetterCase::kUpper));
    builder.AppendOwn(ChangeCase(word.substr(first_size, word.size() - first_size - rest.size()),
                                 LetterCase::kLower));
  }
  Value result = builder.TakeValue();
  result.as<String>().is_markup = text.as<String>().is_markup;
  return result;
}

Value Indent(Heap& heap, Arguments& a) {
  if (!a.positional[0].is_string()) {
    return heap.Fail("indent needs a string");
  }
  const Value indention = a.positional[1].is_string()
                              ? a.positional[1]
                              : Binary(heap,
                                       BinaryOp::kMul,
                                       heap.Literal(" "),
                                       Value::Int(IntegerOr(heap, a.positional[1], 4)));
  const bool is_blank_indented = BoolOr(a.positional[3], false);
  // jinja2 adds a line end, so that an empty last line counts as a line.
  TextBuilder text(heap);
  text.Append(a.positional[0]);
  text.AppendOwn("\n");
  const Value lines = SplitLines(heap, text.TakeValue(), false);
  TextBuilder builder(heap);
  const bool has_client_text = a.positional[0].as<String>().has_client_text();
  bool is_first = true;
  for (const Value& line : lines.as<List>().items) {
    if (!is_first && !builder.AppendMarked("\n", has_client_text)) {
      break;
    }
    const bool is_indented =
        is_first ? BoolOr(a.positional[2], false) : is_blank_indented || !line.text().empty();
    if (is_indented && heap.budget().ok()) {
      builder.Append(indention);
    }
    builder.Append(line);
    is_first = false;
  }
  Value result = builder.TakeValue();
  result.as<String>().is_markup = a.positional[0].as<String>().is_markup;
  return result;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Returns the text of a number without the '_' that Python allows between digits, or nullopt.
std::optional<std::string> NumberText(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result += text[i];
    } else if (i == 0 || i + 1 == text.size() || !IsDigit(text[i - 1]) || !IsDigit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return result;
}

// Returns float(text), or nullopt if Python raises ValueError.
std::optional<double> ParseFloat(std::string_view stripped) {
  const std::optional<std::string> text = NumberText(stripped);
  if (!text.has_value()) {
    return std::nullopt;
  }
  const std::string word =
      absl::AsciiStrToLower(text->substr(text->find_first_not_of("+-") == 1 ? 1 : 0));
  const bool is_word = word == "inf" || word == "infinity" || word == "nan";
  double value = 0;
  if ((!is_word && text->find_first_not_of("0123456789+-.eE") != std::string::npos) ||
      !absl::SimpleAtod(*text, &value)) {
    return std::nullopt;
  }
  return value;
}

Value IntegerOfFloat(Heap& heap, double value) {
  return std::abs(value) < 9.2e18 ? Value::Int(static_cast<int64_t>(value))
                                  : heap.Fail("an integer needs more than 64 bits");
}

// True if the text has decimal digits other than 0 to 9. Python's int() and float() take them.
bool HasOtherDigits(std::string_view text) {
  while (!text.empty()) {
    const std::string_view before = text;
    if (TakeCodePoint(text) >= 0x80 &&
        IsTextClass(before.substr(0, before.size() - text.size()), TextClass::kDecimal)) {
      return true;
    }
  }
  return false;
}

Value ToInt(Heap& heap, Arguments& a) {
  const Value& value = a.positional[0];
  Value otherwise = a.positional[1].is_missing() ? Value::Int(0) : a.positional[1];
  if (value.is_undefined()) {
    return heap.Fail(UndefinedMessage(value));
  }
  if (IntegerOr(heap, a.positional[2], 10) != 10) {
    return heap.Fail("int: only base 10 is supported");
  }
  if (value.is_integer()) {
    return Value::Int(value.integer());
  }
  if (value.is(Kind::kFloat)) {
    return std::isnan(value.number()) ? otherwise : IntegerOfFloat(heap, value.number());
  }
  if (!value.is_string()) {
    return otherwise;
  }
  const Value stripped = StripText(heap, value, Value::Missing(), true, true);
  if (!heap.budget().ok()) {
    return Value();
  }
  const std::optional<double> as_float = ParseFloat(stripped.text());
  if (!as_float.has_value()) {
    if (HasOtherDigits(stripped.text())) {
      return heap.Fail("numbers in other digits than 0 to 9 are not supported");
    }
    return otherwise;
  }
  if (!std::isfinite(*as_float)) {
    return otherwise;
  }
  int64_t integer = 0;
  const std::string text = *NumberText(stripped.text());
  return absl::SimpleAtoi(text, &integer) ? Value::Int(integer) : IntegerOfFloat(heap, *as_float);
}

Value ToFloat(Heap& heap, Arguments& a) {
  const Value& value = a.positional[0];
  Value otherwise = a.positional[1].is_missing() ? Value::Float(0) : a.positional[1];
  if (value.is_undefined()) {
    return heap.Fail(UndefinedMessage(value));
  }
  if (value.is_number()) {
    return Value::Float(value.number());
  }
  if (!value.is_string()) {
    return otherwise;
  }
  const Value stripped = StripText(heap, value, Value::Missing(), true, true);
  const std::optional<double> parsed = ParseFloat(stripped.text());
  if (!parsed.has_value() && HasOtherDigits(stripped.text())) {
    return heap.Fail("numbers in other digits than 0 to 9 are not supported");
  }
  return parsed.has_value() ? Value::Float(*parsed) : otherwise;
}

Value Absolute(Heap& heap, Arguments& a) {
  const Value& value = a.positional[0];
  if (!value.is_number()) {
    return heap.Fail("abs needs a number");
  }
  if (value.is(Kind::kFloat)) {
    return Value::Float(std::abs(value.number()));
  }
  return value.integer() < 0 ? Negate(heap, value) : Value::Int(value.integer());
}

Value Safe(Heap& heap, Arguments& a) {
  const Value text = ToText(heap, a.positional[0]);
  Value result = heap.Part(text, 0, text.text().size());
  result.as<String>().is_markup = true;
  return result;
}

Value Format(Heap& heap, Arguments& a) {
  const Value format = ToText(heap, a.positional[0]);
  const bool is_named = !a.named.empty();
  Value values = heap.New<List>(Kind::kTuple);
  if (is_named) {
    if (a.positional.size() > 1) {
      return heap.Fail("format: arguments by position and by name");
    }
    values = heap.New<Dict>(Kind::kDict);
    for (auto& [key, value] : a.named) {
      values.as<Dict>().Add(key, value);
    }
  }
  for (size_t i = 1; i < a.positional.size(); ++i) {
    values.as<List>().Append(a.positional[i]);
  }
  return heap.budget().ok() ? FormatPercent(heap, format, values) : Value();
}

bool ReadIndent(Heap& heap, const Value& indent, JsonStyle& style) {
  if (indent.is_missing() || indent.is(Kind::kNone)) {
    return true;
  }
  style.has_indent = true;
  if (indent.is_string()) {
    style.indent = indent;
    return true;
  }
  const int64_t width = IntegerOr(heap, indent, 0);
  if (width > 1000) {
    heap.Fail("tojson: the indent is too wide");
    return false;
  }
  style.indent =
      heap.Str(std::string(static_cast<size_t>(width > 0 ? width : 0), ' '), /*is_client=*/false);
  return heap.budget().ok();
}

// The tojson filter of Hugging Face transformers, which does not escape HTML.
Value ToJsonFilter(Heap& heap, Arguments& a) {
  JsonStyle style;
  style.ensure_ascii = BoolOr(a.positional[1], false);
  style.sort_keys = BoolOr(a.positional[4], false);
  if (!ReadIndent(heap, a.positional[2], style)) {
    return Value();
  }
  style.item_separator = heap.Literal(style.has_indent ? "," : ", ");
  style.key_separator = heap.Literal(": ");
  const Value& separators = a.positional[3];
  if (!separators.is_missing() && !separators.is(Kind::kNone)) {
    const bool is_pair = separators.is_sequence() && separators.as<List>().items.size() == 2;
    if (!is_pair || !separators.as<List>().items[0].is_string() ||
        !separators.as<List>().items[1].is_string()) {
      return heap.Fail("tojson: separators are two strings");
    }
    style.item_separator = separators.as<List>().items[0];
    style.key_separator = separators.as<List>().items[1];
  }
  return ToJson(heap, a.positional[0], style);
}

constexpr Builtin kFilters[] = {
    {"abs", "", Absolute},
    {"capitalize", "", [](Heap& heap, Arguments& a) { return OnText(heap, a, "capitalize"); }},
    {"float", "?default", ToFloat},
    {"format", "*", Format},
    {"indent", "?width ?first ?blank", Indent},
    {"int", "?default ?base", ToInt},
    {"lower", "", [](Heap& heap, Arguments& a) { return OnText(heap, a, "lower"); }},
    {"replace", "old new ?count", Replace},
    {"safe", "", Safe},
    {"string", "", [](Heap& heap, Arguments& a) { return ToText(heap, a.positional[0]); }},
    {"title", "", Title},
    {"tojson", "?ensure_ascii ?indent ?separators ?sort_keys", ToJsonFilter},
    {"trim", "?chars", Trim},
    {"upper", "", [](Heap& heap, Arguments& a) { return OnText(heap, a, "upper"); }},
};

}  // namespace

std::span<const Builtin> StringFilters() { return kFilters; }

}  // namespace quire
