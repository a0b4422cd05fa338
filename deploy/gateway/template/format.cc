#include "deploy/gateway/template/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/python_text.h"
#include "deploy/gateway/template/unicode.h"

namespace quire {
namespace {

constexpr int64_t kMaxPrecision = 100;  // bounds the digits of a number

struct Spec {
  std::string_view fill = " ";
  char align = 0;  // '<', '>', '^', '=' (padding after the sign), or 0: the type's default
  char sign = 0;   // '+', ' ' or 0
  bool is_alternate = false;
  bool has_comma = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

// Reads digits. Caps the number at 2^40, which exceeds every limit, so that it does not overflow.
int64_t TakeNumber(std::string_view& text) {
  int64_t number = 0;
  while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
    number = std::min<int64_t>(number * 10 + (text[0] - '0'), int64_t{1} << 40);
    text.remove_prefix(1);
  }
  return number;
}

bool TakeIf(std::string_view& text, char c) {
  if (!text.starts_with(c)) {
    return false;
  }
  text.remove_prefix(1);
  return true;
}

// Appends sign and body, padded to the width. `body` is a string.
bool AppendPadded(
    Heap& heap, const Spec& spec, std::string_view sign, const Value& body, TextBuilder& out) {
  const int64_t pad = spec.width - NumCodePoints(sign) - body.as<String>().length();
  if (pad > 0 && !heap.budget().Fits(pad)) {
    return false;
  }
  const int64_t left = spec.align == '<' ? 0 : spec.align == '^' ? pad / 2 : pad;
  const auto append_fill = [&](int64_t count) {
    for (; count > 0 && heap.budget().Spend() && out.AppendOwn(spec.fill); --count) {
    }
  };
  if (spec.align == '=') {
    out.AppendOwn(sign);
  }
  append_fill(left);
  if (spec.align != '=') {
    out.AppendOwn(sign);
  }
  out.Append(body);
  append_fill(pad - std::max<int64_t>(left, 0));
  return heap.budget().ok();
}

std::string Grouped(std::string digits) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t i = end; i > 3; i -= 3) {
    digits.insert(i - 3, 1, ',');
  }
  return digits;
}

std::optional<std::string> IntegerDigits(const Spec& spec, uint64_t size) {
  std::array<char, 32> buffer = {};
  switch (spec.type) {
    case 0:
    case 'd':
    case 'i':
    case 'u':
      return Cat(size);
    case 'x':
      std::snprintf(buffer.data(), buffer.size(), "%llx", static_cast<unsigned long long>(size));
      return Cat(spec.is_alternate ? "0x" : "", buffer.data());
    case 'X':
      std::snprintf(buffer.data(), buffer.size(), "%llX", static_cast<unsigned long long>(size));
      return Cat(spec.is_alternate ? "0X" : "", buffer.data());
    case 'o':
      std::snprintf(buffer.data(), buffer.size(), "%llo", static_cast<unsigned long long>(size));
      return Cat(spec.is_alternate ? "0o" : "", buffer.data());
    default:
      return std::nullopt;
  }
}

std::optional<std::string> FloatDigits(const Spec& spec, double size) {
  if (spec.precision > kMaxPrecision || spec.is_alternate) {
    return std::nullopt;
  }
  if (spec.type == 0) {
    return spec.precision < 0 ? std::optional(FloatText(size)) : std::nullopt;
  }
  std::array<char, 512> buffer = {};
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  switch (spec.type) {
    case 'f':
    case 'F':
      std::snprintf(buffer.data(), buffer.size(), "%.*f", precision, size);
      break;
    case 'e':
      std::snprintf(buffer.data(), buffer.size(), "%.*e", precision, size);
      break;
    case 'g':
      std::snprintf(buffer.data(), buffer.size(), "%.*g", precision, size);
      break;
    case '%':
      std::snprintf(buffer.data(), buffer.size(), "%.*f%%", precision, size * 100);
      break;
    default:
      return std::nullopt;
  }
  return std::string(buffer.data());
}

bool IsFloatType(char type) {
  return type == 'f' || type == 'F' || type == 'e' || type == 'g' || type == '%';
}

bool AppendNumber(Heap& heap, Spec spec, const Value& value, TextBuilder& out) {
  const bool is_float = value.is(Kind::kFloat) || IsFloatType(spec.type);
  const bool is_negative = is_float ? std::signbit(value.number()) : value.integer() < 0;
  std::optional<std::string> digits;
  if (is_float) {
    digits =
        std::isfinite(value.number()) ? FloatDigits(spec, std::abs(value.number())) : std::nullopt;
  } else if (spec.precision < 0) {
    const auto bits = static_cast<uint64_t>(value.integer());
    digits = IntegerDigits(spec, is_negative ? 0 - bits : bits);
  }
  // Python would also put commas between the padding zeros, which is not supported.
  if (!digits.has_value() || (spec.has_comma && spec.fill == "0")) {
    heap.Fail("this format of a number is not supported");
    return false;
  }
  if (spec.has_comma) {
    digits = Grouped(std::move(*digits));
  }
  if (spec.is_alternate && spec.align == '=') {
    heap.Fail("this format of a number is not supported");
    return false;
  }
  spec.align = spec.align == 0 ? '>' : spec.align;
  const std::string_view sign =
      is_negative ? "-" : std::string_view(&spec.sign, spec.sign != 0 ? 1 : 0);
  return AppendPadded(heap, spec, sign, heap.Str(*std::move(digits), /*is_client=*/false), out);
}

bool AppendString(Heap& heap, Spec spec, const Value& value, TextBuilder& out) {
  spec.align = spec.align == 0 ? '<' : spec.align;
  const bool is_cut = spec.precision >= 0;
  return AppendPadded(heap,
                      spec,
                      "",
                      is_cut ? heap.Part(value, 0, OffsetOf(value.text(), spec.precision)) : value,
                      out);
}

// The values of a % format: a tuple, a mapping, or one value.
class PercentValues {
 public:
  PercentValues(Heap& heap, const Value& values) : heap_(heap), values_(values) {}

  Value Next() {
    if (values_.is(Kind::kTuple)) {
      const auto& items = values_.as<List>().items;
      if (num_used_ < items.size()) {
        return items[num_used_++];
      }
    } else if (num_used_++ == 0) {
      return values_;
    }
    return heap_.Fail("not enough arguments for format string");
  }
  Value Named(std::string_view name) {
    if (!values_.is(Kind::kDict)) {
      return heap_.Fail("format requires a mapping");
    }
    has_named_ = true;
    const Value* const found = values_.as<Dict>().Find(name);
    return found != nullptr ? *found : heap_.Fail("format: no such key");
  }
  void CheckAllUsed() {
    const bool may_be_left = values_.is(Kind::kDict) || values_.is(Kind::kList) ||
                             values_.is(Kind::kRange) || values_.is_undefined();
    const size_t num_values = values_.is(Kind::kTuple) ? values_.as<List>().items.size() : 1;
    if (num_used_ < num_values && !may_be_left && !has_named_) {
      heap_.Fail("not all arguments converted during string formatting");
    }
  }

 private:
  Heap& heap_;
  const Value& values_;
  size_t num_used_ = 0;
  bool has_named_ = false;
};

Spec TakePercentSpec(std::string_view& text) {
  Spec spec;
  bool has_zero = false;
  for (; !text.empty() && std::string_view("-+ 0#").find(text[0]) != std::string_view::npos;
       text.remove_prefix(1)) {
    switch (text[0]) {
      case '-':
        spec.align = '<';
        break;
      case '+':
        spec.sign = '+';
        break;
      case ' ':
        spec.sign = spec.sign == 0 ? ' ' : spec.sign;
        break;
      case '#':
        spec.is_alternate = true;
        break;
      default:
        has_zero = true;
    }
  }
  spec.width = TakeNumber(text);
  if (TakeIf(text, '.')) {
    spec.precision = TakeNumber(text);
  }
  if (!text.empty()) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  const bool is_text = spec.type == 's' || spec.type == 'r';
  if (spec.align == 0) {
    spec.align = has_zero && !is_text ? '=' : '>';
    spec.fill = has_zero && !is_text ? "0" : " ";
  }
  return spec;
}

bool AppendPercent(Heap& heap, Spec spec, const Value& value, TextBuilder& out) {
  if (spec.type == 's' || spec.type == 'r') {
    TextBuilder text(heap);
    return (spec.type == 's' ? AppendText(heap, value, text) : AppendRepr(heap, value, text)) &&
           AppendString(heap, spec, text.TakeValue(), out);
  }
  if (!value.is_number()) {
    heap.Fail("%d and its like need a number");
    return false;
  }
  const bool is_decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
  if (is_decimal && value.is(Kind::kFloat)) {
    if (!(std::abs(value.number()) < 9e18)) {
      heap.Fail("an integer needs more than 64 bits");
      return false;
    }
    return AppendNumber(heap, spec, Value::Int(static_cast<int64_t>(value.number())), out);
  }
  if (!is_decimal && !IsFloatType(spec.type) && !(value.is_integer() && spec.type != 0)) {
    heap.Fail("this format of a number is not supported");
    return false;
  }
  return AppendNumber(heap, spec, value, out);
}

// Reads [[fill]align][sign][#][0][width][,][.precision][type]. Returns nullopt for another form.
std::optional<Spec> ParseSpec(std::string_view text) {
  constexpr std::string_view kAligns = "<>^=";
  Spec spec;
  const size_t fill_size = OffsetOf(text, 1);
  if (fill_size < text.size() && kAligns.find(text[fill_size]) != std::string_view::npos) {
    spec.fill = text.substr(0, fill_size);
    spec.align = text[fill_size];
    text.remove_prefix(fill_size + 1);
  } else if (!text.empty() && kAligns.find(text[0]) != std::string_view::npos) {
    spec.align = text[0];
    text.remove_prefix(1);
  }
  if (TakeIf(text, '+')) {
    spec.sign = '+';
  } else if (!TakeIf(text, '-') && TakeIf(text, ' ')) {
    spec.sign = ' ';
  }
  spec.is_alternate = TakeIf(text, '#');
  if (spec.align == 0 && text.starts_with('0')) {
    spec.align = '=';
    spec.fill = "0";
  }
  spec.width = TakeNumber(text);
  spec.has_comma = TakeIf(text, ',');
  if (TakeIf(text, '.')) {
    if (text.empty() || text[0] < '0' || text[0] > '9') {
      return std::nullopt;
    }
    spec.precision = TakeNumber(text);
  }
  if (!text.empty()) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  return text.empty() ? std::optional(spec) : std::nullopt;
}

bool AppendFormatted(Heap& heap, const Value& value, std::string_view spec_text, TextBuilder& out) {
  if (spec_text.empty()) {
    return AppendText(heap, value, out);
  }
  const std::optional<Spec> spec = ParseSpec(spec_text);
  if (spec.has_value() && value.is_number() && spec->type != 'i' && spec->type != 'u') {
    const bool float_as_integer =
        value.is(Kind::kFloat) && spec->type != 0 && !IsFloatType(spec->type);
    if (!float_as_integer) {
      return AppendNumber(heap, *spec, value, out);
    }
  }
  const bool is_text = spec.has_value() && (spec->type == 0 || spec->type == 's') &&
                       spec->sign == 0 && !spec->is_alternate && !spec->has_comma &&
                       spec->align != '=';
  if (is_text && value.is_string()) {
    return AppendString(heap, *spec, value, out);
  }
  heap.Fail("this format specification is not supported");
  return false;
}

// The values for the fields of str.format: by name, by index, or the next one.
class Fields {
 public:
  Fields(Heap& heap, const Arguments& arguments) : heap_(heap), arguments_(arguments) {}

  Value Get(std::string_view name) {
    if (name.find_first_of(".[") != std::string_view::npos) {
      return heap_.Fail("format fields with '.' or '[' are not supported");
    }
    const bool is_number =
        !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
    if (name.empty() || is_number) {
      (is_number ? is_manual_ : is_automatic_) = true;
      const int64_t index = is_number ? TakeNumber(name) : next_++;
      if (is_manual_ && is_automatic_) {
        return heap_.Fail("format: numbered and unnumbered fields");
      }
      // positional[0] is the format itself.
      const auto& values = arguments_.positional;
      return index + 1 < static_cast<int64_t>(values.size())
                 ? values[static_cast<size_t>(index) + 1]
                 : heap_.Fail("format: index out of range");
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key.text() == name) {
        return value;
      }
    }
    return heap_.Fail("format: no such argument");
  }

 private:
  Heap& heap_;
  const Arguments& arguments_;
  int64_t next_ = 0;
  bool is_manual_ = false, is_automatic_ = false;
};

// Appends the value of the field between braces: name, !conversion, :specification.
bool AppendField(Heap& heap, std::string_view field, Fields& fields, TextBuilder& out) {
  const size_t colon = std::min(field.find(':'), field.size());
  const std::string_view spec = field.substr(std::min(colon + 1, field.size()));
  std::string_view name = field.substr(0, colon);
  const size_t bang = std::min(name.find('!'), name.size());
  const std::string_view conversion = name.substr(bang);
  name = name.substr(0, bang);
  Value value = fields.Get(name);
  if (conversion == "!r") {
    TextBuilder text(heap);
    AppendRepr(heap, value, text);
    value = text.TakeValue();
  } else if (conversion == "!s") {
    value = ToText(heap, value);
  } else if (!conversion.empty()) {
    heap.Fail("this conversion of a format field is not supported");
  }
  return heap.budget().ok() && AppendFormatted(heap, value, spec, out);
}

}  // namespace

Value FormatPercent(Heap& heap, const Value& format, const Value& values) {
  if (format.as<String>().is_markup) {
    return heap.Fail("formatting of a safe string would escape");
  }
  TextBuilder out(heap);
  PercentValues arguments(heap, values);
  std::string_view text = format.text();  // the part that is not read yet
  const auto place = [&] { return format.text().size() - text.size(); };
  while (heap.budget().Spend()) {
    const size_t percent = std::min(text.find('%'), text.size());
    const size_t field = place() + percent;
    out.Append(format, place(), field);
    if (percent == text.size()) {
      arguments.CheckAllUsed();
      break;
    }
    text.remove_prefix(percent + 1);
    if (TakeIf(text, '%')) {
      out.Append(format, field, field + 1);
      continue;
    }
    std::optional<Value> named;
    if (TakeIf(text, '(')) {
      const size_t end = text.find(')');
      if (end == std::string_view::npos) {
        return heap.Fail("incomplete format key");
      }
      named = arguments.Named(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
    const Spec spec = TakePercentSpec(text);
    const Value value = named.has_value() ? *named : arguments.Next();
    // If a client wrote a part of the specification, the padding may spell anything, so mark all of
    // the formatted text as the client's.
    out.set_marks_all(format.as<String>().HasClientText(field, place()));
    if (!AppendPercent(heap, spec, value, out)) {
      break;
    }
    out.set_marks_all(false);
  }
  return out.TakeValue();
}

Value FormatMethod(Heap& heap, Arguments& arguments) {
  TextBuilder out(heap);
  Fields fields(heap, arguments);
  const Value& format = arguments.positional[0];
  std::string_view text = format.text();  // the part that is not read yet
  const auto place = [&] { return format.text().size() - text.size(); };
  while (heap.budget().Spend()) {
    const size_t brace = std::min(text.find_first_of("{}"), text.size());
    const size_t field = place() + brace;
    out.Append(format, place(), field);
    if (brace == text.size()) {
      break;
    }
    const char c = text[brace];
    text.remove_prefix(brace + 1);
    if (TakeIf(text, c)) {
      out.Append(format, field, field + 1);
      continue;
    }
    const size_t end = c == '}' ? std::string_view::npos : text.find_first_of("{}");
    if (end == std::string_view::npos || text[end] == '{') {
      return heap.Fail("format: a single brace, or one inside a field");
    }
    out.set_marks_all(format.as<String>().HasClientText(field, place() + end));
    if (!AppendField(heap, text.substr(0, end), fields, out)) {
      break;
    }
    out.set_marks_all(false);
    text.remove_prefix(end + 1);
  }
  return out.TakeValue();
}

}  // namespace quire
