#include <algorithm>
#include <string_view>

#include "deploy/gateway/template/builtins.h"
#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/python_text.h"
#include "deploy/gateway/template/unicode.h"

namespace quire {
namespace {

using K = Kind;

// True if the value's kind is one of `kinds`.
template <Kind... kinds>
Value IsKind(Heap&, Arguments& a) {
  return Value::Bool((a.positional[0].is(kinds) || ...));
}

template <bool expected>
Value IsBool(Heap&, Arguments& a) {
  return Value::Bool(a.positional[0].is(Kind::kBool) && IsTrue(a.positional[0]) == expected);
}

// Returns value % divisor == rest.
Value HasRest(Heap& heap, const Value& value, const Value& divisor, int64_t rest) {
  return Value::Bool(Equal(heap, Binary(heap, BinaryOp::kMod, value, divisor), Value::Int(rest)));
}

template <bool is_negated>
Value IsEqual(Heap& heap, Arguments& a) {
  return Value::Bool(Equal(heap, a.positional[0], a.positional[1]) != is_negated);
}

Value IsLess(Heap& heap, Arguments& a) {
  return Value::Bool(Less(heap, a.positional[0], a.positional[1]));
}
Value IsGreater(Heap& heap, Arguments& a) {
  return Value::Bool(Less(heap, a.positional[1], a.positional[0]));
}
Value IsLessOrEqual(Heap& heap, Arguments& a) {
  return Value::Bool(Less(heap, a.positional[0], a.positional[1]) ||
                     Equal(heap, a.positional[0], a.positional[1]));
}
Value IsGreaterOrEqual(Heap& heap, Arguments& a) {
  return Value::Bool(Less(heap, a.positional[1], a.positional[0]) ||
                     Equal(heap, a.positional[0], a.positional[1]));
}

Value IsIn(Heap& heap, Arguments& a) {
  return Value::Bool(Contains(heap, a.positional[1], a.positional[0]));
}

template <TextClass text_class>
Value IsOfCase(Heap& heap, Arguments& a) {
  const Value text = ToText(heap, a.positional[0]);
  heap.budget().SpendOnText(4 * text.text().size());
  return Value::Bool(IsTextClass(text.text(), text_class));
}

Value IsSameAs(Heap& heap, Arguments& a) {
  const Value& x = a.positional[0];
  const Value& y = a.positional[1];
  if (x.kind() != y.kind() || x.is(Kind::kNone)) {
    return Value::Bool(x.kind() == y.kind());
  }
  if (x.is(Kind::kBool)) {
    return Value::Bool(IsTrue(x) == IsTrue(y));
  }
  if (x.object() == nullptr || x.is_string() || x.is_undefined()) {
    return heap.Fail("sameas depends on Python's storage of equal values");
  }
  return Value::Bool(x.object() == y.object());
}

constexpr Builtin kTests[] = {
    {"!=", "_", IsEqual<true>},
    {"<", "_", IsLess},
    {"<=", "_", IsLessOrEqual},
    {"==", "_", IsEqual<false>},
    {">", "_", IsGreater},
    {">=", "_", IsGreaterOrEqual},
    {"boolean", "", IsKind<K::kBool>},
    {"callable", "", IsKind<K::kFunction, K::kLoop, K::kUndefined>},
    {"defined",
     "",
     [](Heap&, Arguments& a) { return Value::Bool(!a.positional[0].is_undefined()); }},
    {"divisibleby",
     "num",
     [](Heap& heap, Arguments& a) { return HasRest(heap, a.positional[0], a.positional[1], 0); }},
    {"eq", "_", IsEqual<false>},
    {"equalto", "_", IsEqual<false>},
    {"escaped",
     "",
     [](Heap&, Arguments& a) {
       return Value::Bool(a.positional[0].is_string() && a.positional[0].as<String>().is_markup);
     }},
    {"even",
     "",
     [](Heap& heap, Arguments& a) { return HasRest(heap, a.positional[0], Value::Int(2), 0); }},
    {"false", "", IsBool<false>},
    {"float", "", IsKind<K::kFloat>},
    {"ge", "_", IsGreaterOrEqual},
    {"greaterthan", "_", IsGreater},
    {"gt", "_", IsGreater},
    {"in", "seq", IsIn},
    {"integer", "", IsKind<K::kInt>},
    {"iterable", "", [](Heap&, Arguments& a) { return Value::Bool(IsIterable(a.positional[0])); }},
    {"le", "_", IsLessOrEqual},
    {"lessthan", "_", IsLess},
    {"lower", "", IsOfCase<TextClass::kLower>},
    {"lt", "_", IsLess},
    {"mapping", "", IsKind<K::kDict>},
    {"ne", "_", IsEqual<true>},
    {"none", "", IsKind<K::kNone>},
    {"number", "", IsKind<K::kBool, K::kInt, K::kFloat>},
    {"odd",
     "",
     [](Heap& heap, Arguments& a) { return HasRest(heap, a.positional[0], Value::Int(2), 1); }},
    {"sameas", "other", IsSameAs},
    {"sequence", "", IsKind<K::kString, K::kList, K::kTuple, K::kDict, K::kRange, K::kUndefined>},
    {"string", "", IsKind<K::kString>},
    {"true", "", IsBool<true>},
    {"undefined", "", IsKind<K::kUndefined>},
    {"upper", "", IsOfCase<TextClass::kUpper>},
};

}  // namespace

const Builtin* FindTest(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kTests),
                                         std::end(kTests),
                                         [name](const Builtin& test) { return test.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace quire
