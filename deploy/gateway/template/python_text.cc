#include "deploy/gateway/template/python_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <span>

#include "absl/strings/str_format.h"

#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/unicode.h"

namespace quire {
namespace {

// Calls escape(code_point, text) for each character of a string. The call appends the escaped
// character to the text.
template <class Escape>
bool AppendEscaped(Heap& heap, const Value& string, const Escape& escape, TextBuilder& out) {
  heap.budget().SpendOnText(8 * string.text().size());
  const std::span<const ByteRange> ranges = string.as<String>().client_ranges;
  auto range = ranges.begin();
  std::string result;
  bool is_client = false;
  for (std::string_view rest = string.text(); !rest.empty();) {
    const size_t place = string.text().size() - rest.size();
    while (range != ranges.end() && range->end <= place) {
      ++range;
    }
    const bool is_next_client = range != ranges.end() && range->begin <= place;
    // Appends parts of some 1000 bytes, so that the budget bounds the text while it grows.
    if (is_next_client != is_client || result.size() > 1000) {
      if (!out.AppendMarked(result, is_client)) {
        return false;
      }
      result.clear();
      is_client = is_next_client;
    }
    escape(TakeCodePoint(rest), result);
  }
  return out.AppendMarked(result, is_client);
}

bool AppendStringRepr(Heap& heap, const Value& string, TextBuilder& out) {
  const std::string_view text = string.text();
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  const auto escape = [quote](char32_t c, std::string& result) {
    if (c == static_cast<char32_t>(quote) || c == U'\\') {
      result += {'\\', static_cast<char>(c)};
    } else if (c == U'\n') {
      result += "\\n";
    } else if (c == U'\r') {
      result += "\\r";
    } else if (c == U'\t') {
      result += "\\t";
    } else if (IsPythonPrintable(c)) {
      AppendCodePoint(c, result);
    } else {
      const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
      const char letter = c < 0x100 ? 'x' : c < 0x10000 ? 'u' : 'U';
      absl::StrAppendFormat(&result, "\\%c%0*x", letter, digits, static_cast<uint32_t>(c));
    }
  };
  const std::string_view quotes(&quote, 1);
  return out.AppendOwn(quotes) && AppendEscaped(heap, string, escape, out) && out.AppendOwn(quotes);
}

bool AppendReprs(Heap& heap, const List& list, TextBuilder& out) {
  for (size_t i = 0; i < list.items.size(); ++i) {
    if ((i > 0 && !out.AppendOwn(", ")) || !AppendRepr(heap, list.items[i], out)) {
      return false;
    }
  }
  return true;
}

bool AppendDictRepr(Heap& heap, const Dict& dict, TextBuilder& out) {
  out.AppendOwn("{");
  for (size_t i = 0; i < dict.items.size(); ++i) {
    const auto& [key, value] = dict.items[i];
    if ((i > 0 && !out.AppendOwn(", ")) || !AppendRepr(heap, key, out) || !out.AppendOwn(": ") ||
        !AppendRepr(heap, value, out)) {
      return false;
    }
  }
  return out.AppendOwn("}");
}

bool AppendRangeRepr(const Range& range, TextBuilder& out) {
  out.AppendOwn(Cat("range(", range.start, ", ", range.stop));
  return (range.step == 1 || out.AppendOwn(Cat(", ", range.step))) && out.AppendOwn(")");
}

bool AppendViewRepr(Heap& heap, const Value& view, TextBuilder& out) {
  constexpr std::array<std::string_view, 3> kNames = {
      "dict_items([", "dict_keys([", "dict_values(["};
  const Value items = ToList(heap, view);
  return out.AppendOwn(kNames[static_cast<size_t>(view.as<View>().what)]) &&
         AppendReprs(heap, items.as<List>(), out) && out.AppendOwn("])");
}

bool AppendFunctionRepr(Heap& heap, const Function& function, TextBuilder& out) {
  std::string_view name = function.name;
  constexpr std::string_view kMacro = "macro ";
  if (!name.starts_with(kMacro)) {
    heap.Fail("a function has no text");
    return false;
  }
  name.remove_prefix(kMacro.size());
  return out.AppendOwn(name.empty() ? std::string("<Macro anonymous>")
                                    : Cat("<Macro '", name, "'>"));
}

class JsonWriter {
 public:
  JsonWriter(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style), out_(heap) {}

  bool Write(const Value& value) {
    const DepthGuard guard(heap_.budget());
    if (!guard.ok() || !heap_.budget().Spend()) {
      return false;
    }
    switch (value.kind()) {
      case Kind::kNone:
        return out_.AppendOwn("null");
      case Kind::kBool:
        return out_.AppendOwn(value.integer() != 0 ? "true" : "false");
      case Kind::kInt:
        return out_.AppendOwn(Cat(value.integer()));
      case Kind::kFloat:
        return out_.AppendOwn(Number(value.number()));
      case Kind::kString:
        return WriteString(value);
      case Kind::kList:
      case Kind::kTuple:
        return WriteList(value.as<List>());
      case Kind::kDict:
        return WriteDict(value.as<Dict>());
      default:
        heap_.Fail(Cat("object of type ", TypeName(value), " is not JSON serializable"));
        return false;
    }
  }
  Value Take() { return out_.TakeValue(); }

 private:
  static std::string Number(double value) {
    if (std::isfinite(value)) {
      return FloatText(value);
    }
    return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
  }

  bool NewLine() {
    if (!style_.has_indent) {
      return true;
    }
    bool fits = out_.AppendOwn("\n");
    for (int i = 0; i < level_ && fits; ++i) {
      fits = out_.Append(style_.indent) && heap_.budget().Spend();
    }
    return fits;
  }

  bool WriteString(const Value& string) {
    const auto escape = [this](char32_t c, std::string& result) { EscapeTo(c, result); };
    return out_.AppendOwn("\"") && AppendEscaped(heap_, string, escape, out_) &&
           out_.AppendOwn("\"");
  }

  void EscapeTo(char32_t c, std::string& result) const {
    constexpr std::u32string_view kShort = U"\"\\\n\r\t\b\f";
    constexpr std::string_view kLetters = "\"\\nrtbf";
    const auto append_unit = [&result](uint32_t unit) {
      absl::StrAppendFormat(&result, "\\u%04x", unit);
    };
    const size_t place = kShort.find(c);
    if (place != std::u32string_view::npos) {
      result += {'\\', kLetters[place]};
    } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7E && c < 0x10000)) {
      append_unit(c);
    } else if (style_.ensure_ascii && c >= 0x10000) {
      append_unit(0xD800 + ((c - 0x10000) >> 10));
      append_unit(0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      AppendCodePoint(c, result);
    }
  }

  bool WriteList(const List& list) {
    if (list.items.empty()) {
      return out_.AppendOwn("[]");
    }
    out_.AppendOwn("[");
    ++level_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      if ((i > 0 && !out_.Append(style_.item_separator)) || !NewLine() || !Write(list.items[i])) {
        return false;
      }
    }
    --level_;
    return NewLine() && out_.AppendOwn("]");
  }

  bool WriteKey(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return WriteString(key);
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        return out_.AppendOwn("\"") && Write(key) && out_.AppendOwn("\"");
      default:
        heap_.Fail(Cat("JSON keys cannot be ", TypeName(key)));
        return false;
    }
  }

  bool WriteDict(const Dict& dict) {
    if (dict.items.empty()) {
      return out_.AppendOwn("{}");
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) {
      items.push_back(&item);
    }
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [this](const auto* a, const auto* b) {
        return Less(heap_, a->first, b->first);
      });
    }
    out_.AppendOwn("{");
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if ((i > 0 && !out_.Append(style_.item_separator)) || !NewLine() ||
          !WriteKey(items[i]->first) || !out_.Append(style_.key_separator) ||
          !Write(items[i]->second)) {
        return false;
      }
    }
    --level_;
    return NewLine() && out_.AppendOwn("}");
  }

  Heap& heap_;
  const JsonStyle& style_;
  TextBuilder out_;
  int level_ = 0;
};

}  // namespace

std::string FloatText(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  std::array<char, 64> digits = {};
  const double size = std::abs(value);
  const bool has_exponent = size != 0 && (size >= 1e16 || size < 1e-4);
  const auto end =
      std::to_chars(digits.begin(),
                    digits.end(),
                    value,
                    has_exponent ? std::chars_format::scientific : std::chars_format::fixed)
          .ptr;
  std::string text(digits.begin(), end);
  if (!has_exponent && text.find('.') == std::string::npos) {
    text += ".0";
  }
  return text;
}

bool AppendText(Heap& heap, const Value& value, TextBuilder& out) {
  if (value.is_string()) {
    return out.Append(value);
  }
  return value.is_undefined() ? heap.budget().ok() : AppendRepr(heap, value, out);
}

bool AppendRepr(Heap& heap, const Value& value, TextBuilder& out) {
  const DepthGuard guard(heap.budget());
  if (!guard.ok() || !heap.budget().Spend()) {
    return false;
  }
  switch (value.kind()) {
    case Kind::kUndefined:
      return out.AppendOwn("Undefined");
    case Kind::kNone:
      return out.AppendOwn("None");
    case Kind::kBool:
      return out.AppendOwn(value.integer() != 0 ? "True" : "False");
    case Kind::kInt:
      return out.AppendOwn(Cat(value.integer()));
    case Kind::kFloat:
      return out.AppendOwn(FloatText(value.number()));
    case Kind::kString:
      return value.as<String>().is_markup
                 ? out.AppendOwn("Markup(") && AppendStringRepr(heap, value, out) &&
                       out.AppendOwn(")")
                 : AppendStringRepr(heap, value, out);
    case Kind::kList:
      return out.AppendOwn("[") && AppendReprs(heap, value.as<List>(), out) && out.AppendOwn("]");
    case Kind::kTuple:
      return out.AppendOwn("(") && AppendReprs(heap, value.as<List>(), out) &&
             out.AppendOwn(value.as<List>().items.size() == 1 ? ",)" : ")");
    case Kind::kDict:
      return AppendDictRepr(heap, value.as<Dict>(), out);
    case Kind::kNamespace:
      return out.AppendOwn("<Namespace ") && AppendDictRepr(heap, value.as<Dict>(), out) &&
             out.AppendOwn(">");
    case Kind::kRange:
      return AppendRangeRepr(value.as<Range>(), out);
    case Kind::kView:
      return AppendViewRepr(heap, value, out);
    case Kind::kFunction:
      return AppendFunctionRepr(heap, value.as<Function>(), out);
    default:
      heap.Fail(Cat("a ", TypeName(value), " has no text"));
      return false;
  }
}

Value ToText(Heap& heap, const Value& value) {
  if (value.is_string()) {
    return value;
  }
  TextBuilder builder(heap);
  AppendText(heap, value, builder);
  return builder.TakeValue();
}

Value ToJson(Heap& heap, const Value& value, const JsonStyle& style) {
  JsonWriter writer(heap, style);
  return writer.Write(value) ? writer.Take() : Value();
}

}  // namespace quire
