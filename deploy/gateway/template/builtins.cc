#include "deploy/gateway/template/builtins.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/operators.h"

namespace quire {
namespace {

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

const Builtin* Find(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::find_if(
      table.begin(), table.end(), [name](const Builtin& builtin) { return builtin.name == name; });
  return found == table.end() ? nullptr : &*found;
}

Value MakeView(Heap& heap, Arguments& a, ViewOf what) {
  return heap.New<View>(Kind::kView, a.positional[0], what);
}

Value GetOrDefault(Heap& heap, Arguments& a) {
  if (!CheckHashable(heap, a.positional[1])) {
    return Value();
  }
  const Value* const found = a.positional[0].as<Dict>().Find(a.positional[1]);
  if (found != nullptr) {
    return *found;
  }
  return a.positional[2].is_missing() ? Value::None() : a.positional[2];
}

Value CopyOf(Heap& heap, Arguments& a) {
  if (!a.positional[0].is(Kind::kDict)) {
    return ToList(heap, a.positional[0]);
  }
  Value copy = heap.New<Dict>(Kind::kDict);
  for (const auto& [key, value] : a.positional[0].as<Dict>().items) {
    if (!heap.budget().Spend() || !copy.as<Dict>().Add(key, value)) {
      break;
    }
  }
  return copy;
}

Value CountItems(Heap& heap, Arguments& a) {
  const auto& items = a.positional[0].as<List>().items;
  return Value::Int(std::count_if(items.begin(), items.end(), [&](const Value& item) {
    return Equal(heap, item, a.positional[1]);
  }));
}

Value IndexOfItem(Heap& heap, Arguments& a) {
  const auto& items = a.positional[0].as<List>().items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equal(heap, items[i], a.positional[1])) {
      return Value::Int(static_cast<int64_t>(i));
    }
  }
  return heap.Fail("the item is not in the list");
}

constexpr Builtin kDictMethods[] = {
    {"get", "_ ?_", GetOrDefault},
    {"items", "", [](Heap& heap, Arguments& a) { return MakeView(heap, a, ViewOf::kItems); }},
    {"keys", "", [](Heap& heap, Arguments& a) { return MakeView(heap, a, ViewOf::kKeys); }},
    {"values", "", [](Heap& heap, Arguments& a) { return MakeView(heap, a, ViewOf::kValues); }},
    {"copy", "", CopyOf},
};

constexpr Builtin kListMethods[] = {
    {"count", "_", CountItems},
    {"index", "_", IndexOfItem},
    {"copy", "", CopyOf},
};

}  // namespace

Value CallBuiltin(Heap& heap, const Builtin& builtin, Arguments& arguments) {
  const DepthGuard guard(heap.budget());
  if (!guard.ok() || !heap.budget().Spend()) {
    return Value();
  }
  if (builtin.parameters == "*") {
    return builtin.run(heap, arguments);
  }
  const std::vector<std::string_view> parameters = Words(builtin.parameters);
  if (arguments.positional.size() > parameters.size() + 1) {
    return heap.Fail(Cat(builtin.name, ": too many arguments"));
  }
  for (size_t i = arguments.positional.size(); i < parameters.size() + 1; ++i) {
    std::string_view name = parameters[i - 1];
    const bool is_optional = name.front() == '?';
    name.remove_prefix(is_optional ? 1 : 0);
    const auto named =
        std::find_if(arguments.named.begin(), arguments.named.end(), [name](const auto& argument) {
          return argument.first.text() == name;
        });
    if (named != arguments.named.end() && name != "_") {
      arguments.positional.push_back(std::move(named->second));
      arguments.named.erase(named);
    } else if (is_optional) {
      arguments.positional.push_back(Value::Missing());
    } else {
      return heap.Fail(Cat(builtin.name, ": an argument is missing"));
    }
  }
  if (!arguments.named.empty()) {
    return heap.Fail(Cat(builtin.name, ": unexpected argument ", arguments.named[0].first.text()));
  }
  return heap.budget().ok() ? builtin.run(heap, arguments) : Value();
}

Value CallMethod(Heap& heap, const Builtin& method, Arguments& arguments) {
  const Value self = arguments.positional[0];
  if (!self.is_string() || !self.as<String>().is_markup) {
    return CallBuiltin(heap, method, arguments);
  }
  if (method.name == "replace" || method.name == "join" || method.name == "format") {
    return heap.Fail("this method of a safe string would escape");
  }
  Value result = CallBuiltin(heap, method, arguments);
  if (result.is_string()) {
    result.as<String>().is_markup = true;
  } else if (result.is(Kind::kList)) {
    for (const Value& part : result.as<List>().items) {
      part.as<String>().is_markup = true;
    }
  }
  return result;
}

const Builtin* FindFilter(std::string_view name) {
  const Builtin* const found = Find(StringFilters(), name);
  return found != nullptr ? found : Find(SequenceFilters(), name);
}

const Builtin* FindMethod(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kString:
      return Find(StringMethods(), name);
    case Kind::kDict:
      return Find(kDictMethods, name);
    case Kind::kTuple:
      return name == "copy" ? nullptr : Find(kListMethods, name);
    case Kind::kList:
      return Find(kListMethods, name);
    default:
      return nullptr;
  }
}

bool BoolOr(const Value& value, bool otherwise) {
  return value.is_missing() ? otherwise : IsTrue(value);
}

int64_t IntegerOr(Heap& heap, const Value& value, int64_t otherwise) {
  if (value.is_integer()) {
    return value.integer();
  }
  if (!value.is_missing()) {
    heap.Fail(Cat("'", TypeName(value), "' object cannot be interpreted as an integer"));
  }
  return otherwise;
}

}  // namespace quire
