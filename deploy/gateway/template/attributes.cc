#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "deploy/gateway/template/builtins.h"
#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/loop.h"
#include "deploy/gateway/template/operators.h"

namespace quire {
namespace {

// Attributes of Python's types that Quire does not implement, separated and surrounded by spaces.
std::string_view UnsupportedAttributes(const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      return " casefold center encode expandtabs format_map isascii isidentifier isnumeric "
             "isprintable istitle ljust maketrans partition rfind rindex rjust rpartition swapcase "
             "translate zfill escape striptags unescape ";
    case Kind::kDict:
      return " fromkeys ";
    case Kind::kBool:
    case Kind::kInt:
      return " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag "
             "is_integer numerator real to_bytes ";
    case Kind::kFloat:
      return " as_integer_ratio conjugate fromhex hex imag is_integer real ";
    case Kind::kRange:
      return " count index ";
    case Kind::kView:
      return " isdisjoint mapping ";
    case Kind::kIterator:
      return " close gi_code gi_frame gi_running gi_suspended gi_yieldfrom send throw ";
    case Kind::kFunction:
      return " arguments caller catch_kwargs catch_varargs explicit_caller fromkeys ";
    default:
      return "";
  }
}

// True for a method that changes its object. jinja2's sandbox hides such methods.
bool IsMutator(Kind kind, std::string_view name) {
  constexpr std::array<std::string_view, 5> kOfDict = {
      "clear", "pop", "popitem", "setdefault", "update"};
  constexpr std::array<std::string_view, 8> kOfList = {
      "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
  const auto has = [name](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return (kind == Kind::kDict && has(kOfDict)) || (kind == Kind::kList && has(kOfList));
}

Value BoundMethod(Heap& heap, const Value& self, const Builtin& method) {
  return heap.New<Function>(Kind::kFunction,
                            std::string(method.name),
                            self.depth(),
                            [self, &method](Arguments& arguments) {
                              arguments.positional.insert(arguments.positional.begin(), self);
                              return CallMethod(self.object()->heap(), method, arguments);
                            });
}

// Returns getattr(value, name), or nullopt if there is no such attribute.
std::optional<Value> Find(Heap& heap, const Value& value, std::string_view name) {
  if (const Builtin* const method = FindMethod(value, name)) {
    return BoundMethod(heap, value, *method);
  }
  if (IsMutator(value.kind(), name)) {
    return heap.Undefined(
        Cat("access to attribute '", name, "' of '", TypeName(value), "' object is unsafe."));
  }
  if (value.is(Kind::kNamespace)) {
    const Value* const found = value.as<Dict>().Find(name);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  if (value.is(Kind::kLoop)) {
    return value.as<Loop>().Attribute(value, name);
  }
  if (value.is(Kind::kFunction) && name == "name" &&
      value.as<Function>().name.starts_with("macro ")) {
    return heap.Str(value.as<Function>().name.substr(6), /*is_client=*/false);
  }
  if (value.is(Kind::kRange) && (name == "start" || name == "stop" || name == "step")) {
    const auto& range = value.as<Range>();
    return Value::Int(name == "start" ? range.start : name == "stop" ? range.stop : range.step);
  }
  if (UnsupportedAttributes(value).find(Cat(" ", name, " ")) != std::string_view::npos) {
    return heap.Fail(Cat("'", TypeName(value), "' attribute '", name, "' is not supported"));
  }
  return std::nullopt;
}

// Returns value[key], or nullopt if Python raises TypeError or LookupError.
std::optional<Value> Subscript(Heap& heap, const Value& value, const Value& key) {
  switch (value.kind()) {
    case Kind::kDict: {
      // Find returns null for an unhashable key, because no key of a dict equals it.
      const Value* const found = value.as<Dict>().Find(key);
      return found != nullptr ? std::optional(*found) : std::nullopt;
    }
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange: {
      if (!key.is_integer()) {
        return std::nullopt;
      }
      const int64_t length = *LengthOf(value);
      const int64_t index = key.integer() < 0 ? key.integer() + length : key.integer();
      return index >= 0 && index < length ? std::optional(ItemAt(heap, value, index))
                                          : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

Value GetAttribute(Heap& heap, const Value& value, std::string_view name) {
  if (value.is_undefined()) {
    return heap.Fail(UndefinedMessage(value));
  }
  if (std::optional<Value> found = Find(heap, value, name)) {
    return *std::move(found);
  }
  if (value.is(Kind::kDict)) {
    if (const Value* const item = value.as<Dict>().Find(name)) {
      // A name that begins with "__" may be an attribute of Python's dict. jinja2 would find that
      // attribute, not the item, and refuse to return it.
      return name.starts_with("__") ? heap.Fail("names that begin with '__' are not supported")
                                    : *item;
    }
  }
  return heap.Undefined(Cat("'", TypeName(value), "' object has no attribute '", name, "'"));
}

Value GetItem(Heap& heap, const Value& value, const Value& key) {
  if (value.is_undefined()) {
    return heap.Fail(UndefinedMessage(value));
  }
  std::optional<Value> found = Subscript(heap, value, key);
  if (!found.has_value() && key.is_string()) {
    found = Find(heap, value, key.text());
  }
  return found.has_value()
             ? *std::move(found)
             : heap.Undefined(Cat("'", TypeName(value), "' object has no such element"));
}

}  // namespace quire
