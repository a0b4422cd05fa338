#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/format.h"
#include "deploy/gateway/template/operators.h"

namespace quire {
namespace {

constexpr std::string_view kOverflow = "an integer needs more than 64 bits";

Value Unsupported(Heap& heap, std::string_view symbol, const Value& a, const Value& b) {
  if (a.is_undefined() || b.is_undefined()) {
    return heap.Fail(UndefinedMessage(a.is_undefined() ? a : b));
  }
  return heap.Fail(
      Cat("unsupported operands for ", symbol, ": '", TypeName(a), "' and '", TypeName(b), "'"));
}

Value IntegerPower(Heap& heap, int64_t base, int64_t exponent) {
  int64_t result = 1;
  // A base of 0, 1 or -1 never overflows, so take a small exponent of the same parity: the power is
  // the same, and the loop short. Other bases overflow within 64 factors.
  if (base >= -1 && base <= 1) {
    exponent = exponent == 0 ? 0 : 2 - exponent % 2;
  }
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) {
      return heap.Fail(kOverflow);
    }
  }
  return Value::Int(result);
}

Value IntegerOp(Heap& heap, BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOp::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOp::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOp::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOp::kPow:
      return b >= 0 ? IntegerPower(heap, a, b)
                    : Binary(heap, op, Value::Float(static_cast<double>(a)), Value::Int(b));
    default: {
      if (b == 0) {
        return heap.Fail("division by zero");
      }
      if (b == -1) {  // INT64_MIN / -1 would trap
        overflow = op == BinaryOp::kFloorDiv && __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      const int64_t rest = a % b;
      const bool is_rounded_up = rest != 0 && (rest < 0) != (b < 0);
      result =
          op == BinaryOp::kMod ? rest + (is_rounded_up ? b : 0) : a / b - (is_rounded_up ? 1 : 0);
    }
  }
  return overflow ? heap.Fail(kOverflow) : Value::Int(result);
}

// As divmod of CPython's floatobject.c.
Value FloatDivision(BinaryOp op, double a, double b) {
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (op == BinaryOp::kMod) {
    return Value::Float(rest);
  }
  if (quotient == 0) {
    return Value::Float(std::copysign(0.0, a / b));
  }
  const double floor = std::floor(quotient);
  return Value::Float(quotient - floor > 0.5 ? floor + 1 : floor);
}

Value FloatPower(Heap& heap, double a, double b) {
  if (a == 0 && b < 0) {
    return heap.Fail("0.0 cannot be raised to a negative power");
  }
  const double result = std::pow(a, b);
  if (std::isfinite(a) && std::isfinite(b) && !std::isfinite(result)) {
    return heap.Fail(a < 0 && b != std::floor(b) ? "complex numbers are not supported"
                                                 : "a power is too large");
  }
  return Value::Float(result);
}

Value FloatOp(Heap& heap, BinaryOp op, double a, double b) {
  if (b == 0 && (op == BinaryOp::kDiv || op == BinaryOp::kFloorDiv || op == BinaryOp::kMod)) {
    return heap.Fail("division by zero");
  }
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b);
    case BinaryOp::kSub:
      return Value::Float(a - b);
    case BinaryOp::kMul:
      return Value::Float(a * b);
    case BinaryOp::kDiv:
      return Value::Float(a / b);
    case BinaryOp::kPow:
      return FloatPower(heap, a, b);
    default:
      return FloatDivision(op, a, b);
  }
}

Value AddSequences(Heap& heap, const Value& a, const Value& b) {
  Value result = heap.New<List>(a.kind());
  for (const Value* part : {&a, &b}) {
    for (const Value& item : part->as<List>().items) {
      if (!heap.budget().Spend()) {
        return Value();
      }
      result.as<List>().Append(item);
    }
  }
  return result;
}

Value Repeat(Heap& heap, const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const int64_t length =
      value.is_string() ? static_cast<int64_t>(value.text().size()) : *LengthOf(value);
  int64_t total = 0;
  if (__builtin_mul_overflow(length, count, &total)) {
    total = std::numeric_limits<int64_t>::max();
  }
  if (!heap.budget().Fits(total)) {
    return Value();
  }
  count = length == 0 ? 0 : count;
  if (value.is_string()) {
    TextBuilder builder(heap);
    for (int64_t i = 0; i < count && heap.budget().Spend() && builder.Append(value); ++i) {
    }
    Value result = builder.TakeValue();
    result.as<String>().is_markup = value.as<String>().is_markup;
    return result;
  }
  Value result = heap.New<List>(value.kind());
  for (int64_t i = 0; i < total && heap.budget().Spend(); ++i) {
    result.as<List>().Append(ItemAt(heap, value, i % length));
  }
  return result;
}

// As markupsafe.escape.
void AppendEscaped(const Value& string, TextBuilder& out) {
  const std::string_view text = string.text();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("&<>'\"", begin), text.size());
    if (!out.Append(string, begin, end) || end == text.size()) {
      return;
    }
    const char c = text[end];
    out.AppendMarked(c == '&'   ? "&amp;"
                     : c == '<' ? "&lt;"
                     : c == '>' ? "&gt;"
                     : c == '"' ? "&#34;"
                                : "&#39;",
                     string.as<String>().HasClientText(end, end + 1));
    begin = end + 1;
  }
}

// As in markupsafe: if one string is marked safe, the other is escaped unless it is marked too.
Value AddStrings(Heap& heap, const Value& a, const Value& b) {
  const bool is_markup = a.as<String>().is_markup || b.as<String>().is_markup;
  TextBuilder builder(heap);
  for (const Value* part : {&a, &b}) {
    if (is_markup && !part->as<String>().is_markup) {
      AppendEscaped(*part, builder);
    } else {
      builder.Append(*part);
    }
  }
  Value result = builder.TakeValue();
  result.as<String>().is_markup = is_markup;
  return result;
}

std::string_view SymbolOf(BinaryOp op) {
  constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kSymbols[static_cast<size_t>(op)];
}

}  // namespace

Value Binary(Heap& heap, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer() && op != BinaryOp::kDiv) {
    return IntegerOp(heap, op, a.integer(), b.integer());
  }
  if (a.is_number() && b.is_number()) {
    return FloatOp(heap, op, a.number(), b.number());
  }
  if (op == BinaryOp::kMod && a.is_string()) {
    return FormatPercent(heap, a, b);
  }
  if (op == BinaryOp::kAdd) {
    if (a.is_string() && b.is_string()) {
      return AddStrings(heap, a, b);
    }
    if (a.is_sequence() && a.kind() == b.kind()) {
      return AddSequences(heap, a, b);
    }
  }
  if (op == BinaryOp::kMul) {
    const bool a_is_number = a.is_integer();
    const Value& value = a_is_number ? b : a;
    const Value& count = a_is_number ? a : b;
    if (count.is_integer() && (value.is_string() || value.is_sequence())) {
      return Repeat(heap, value, count.integer());
    }
  }
  return Unsupported(heap, SymbolOf(op), a, b);
}

Value Negate(Heap& heap, const Value& value) {
  if (value.is(Kind::kFloat)) {
    return Value::Float(-value.number());
  }
  return value.is_integer() ? Binary(heap, BinaryOp::kSub, Value::Int(0), value)
                            : Unsupported(heap, "-", Value::Int(0), value);
}

Value Plus(Heap& heap, const Value& value) {
  if (value.is(Kind::kFloat)) {
    return value;
  }
  return value.is_integer() ? Value::Int(value.integer())
                            : Unsupported(heap, "+", Value::Int(0), value);
}

}  // namespace quire
