#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "common/base/string_view.h"
#include "deploy/gateway/template/builtins.h"
#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/python_text.h"
#include "deploy/gateway/template/unicode.h"

namespace quire {
namespace {

// As jinja2's make_attrgetter. Get returns item.a[0].b for the attribute "a.0.b", and the item
// itself without an attribute.
class AttributeGetter {
 public:
  AttributeGetter(Heap& heap, const Value& attribute) : heap_(heap) {
    if (attribute.is_string()) {
      for (const auto& each : absl::StrSplit(ToAbsl(attribute.text()), '.')) {
        const std::string_view part = ToStd(each);
        int64_t index = 0;
        const bool is_index =
            IsTextClass(part, TextClass::kDigit) && absl::SimpleAtoi(each, &index);
        parts_.push_back(
            is_index ? Value::Int(index)
                     : heap.Str(std::string(part), attribute.as<String>().has_client_text()));
      }
    } else if (!attribute.is_missing() && !attribute.is(Kind::kNone)) {
      parts_.push_back(attribute);
    }
  }

  Value Get(Value item) const {
    for (const Value& part : parts_) {
      item = GetItem(heap_, item, part);
    }
    return item;
  }
  // Returns Get(item) as a key to compare by: strings are in lower case unless is_case_sensitive.
  Value GetKey(Value item, bool is_case_sensitive) const {
    Value key = Get(std::move(item));
    if (key.is_string() && !is_case_sensitive) {
      heap_.budget().SpendOnText(16 * key.text().size());
      return heap_.Str(ChangeCase(key.text(), LetterCase::kLower),
                       key.as<String>().has_client_text());
    }
    return key;
  }

 private:
  Heap& heap_;
  std::vector<Value> parts_;
};

struct Keyed {
  Value key, item;
};

// Returns the items sorted by key. Items with equal keys keep their order.
Value SortedList(Heap& heap, std::vector<Keyed> keyed, bool is_reversed) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return is_reversed ? Less(heap, b.key, a.key) : Less(heap, a.key, b.key);
  });
  Value result = heap.New<List>(Kind::kList);
  for (Keyed& each : keyed) {
    result.as<List>().Append(std::move(each.item));
  }
  return result;
}

// Returns the items of the list `copy` with their keys. Returns fewer if the budget is spent.
template <class KeyOf>
std::vector<Keyed> WithKeys(const Value& copy, const KeyOf& key_of) {
  std::vector<Keyed> keyed;
  Heap& heap = copy.object()->heap();
  const auto& items = copy.as<List>().items;
  if (!heap.budget().Fits(static_cast<int64_t>(items.size() * 2 * sizeof(Keyed)))) {
    return keyed;
  }
  keyed.reserve(items.size());
  for (const Value& item : items) {
    if (!heap.budget().Spend()) {
      break;
    }
    keyed.push_back({key_of(item), item});
  }
  return keyed;
}

Value Sort(Heap& heap, Arguments& a) {
  if (a.positional[3].is_string() && a.positional[3].text().find(',') != std::string_view::npos) {
    return heap.Fail("sort by several attributes is not supported");
  }
  const AttributeGetter getter(heap, a.positional[3]);
  const bool is_case_sensitive = BoolOr(a.positional[2], false);
  const Value items = ToList(heap, a.positional[0]);
  return SortedList(
      heap,
      WithKeys(items, [&](const Value& item) { return getter.GetKey(item, is_case_sensitive); }),
      BoolOr(a.positional[1], false));
}

Value DictSort(Heap& heap, Arguments& a) {
  if (!a.positional[0].is(Kind::kDict)) {
    return heap.Fail("dictsort needs a mapping");
  }
  const std::string_view by = a.positional[2].is_string() ? a.positional[2].text() : "";
  if (!a.positional[2].is_missing() && by != "key" && by != "value") {
    return heap.Fail("You can only sort by either \"key\" or \"value\"");
  }
  const AttributeGetter getter(heap, Value::Int(by == "value" ? 1 : 0));
  const bool is_case_sensitive = BoolOr(a.positional[1], false);
  const Value items = ToList(heap, heap.New<View>(Kind::kView, a.positional[0], ViewOf::kItems));
  return SortedList(
      heap,
      WithKeys(items, [&](const Value& item) { return getter.GetKey(item, is_case_sensitive); }),
      BoolOr(a.positional[3], false));
}

Value Extreme(Heap& heap, Arguments& a, bool is_max) {
  const AttributeGetter getter(heap, a.positional[2]);
  const bool is_case_sensitive = BoolOr(a.positional[1], false);
  const NextItem next = Iterate(heap, a.positional[0]);
  Value best;
  if (!next(&best)) {
    return heap.Undefined("No aggregated item, sequence was empty.");
  }
  Value best_key = getter.GetKey(best, is_case_sensitive);
  Value item;
  while (next(&item)) {
    Value key = getter.GetKey(item, is_case_sensitive);
    if (is_max ? Less(heap, best_key, key) : Less(heap, key, best_key)) {
      best = std::move(item);
      best_key = std::move(key);
    }
  }
  return best;
}

Value MakeIterator(Heap& heap, const Value& source, NextItem next) {
  return heap.New<Iterator>(Kind::kIterator, source.depth(), std::move(next));
}

Value Unique(Heap& heap, Arguments& a) {
  struct State {
    AttributeGetter getter;
    Value seen;
    NextItem next;
  };
  auto state = std::make_shared<State>(
      State{AttributeGetter(heap, a.positional[2]), heap.New<List>(Kind::kList), nullptr});
  const bool is_case_sensitive = BoolOr(a.positional[1], false);
  return MakeIterator(heap,
                      a.positional[0],
                      [&heap, state, is_case_sensitive, value = a.positional[0]](Value* item) {
                        if (state->next == nullptr) {
                          state->next = Iterate(heap, value);
                        }
                        while (state->next(item)) {
                          const Value key = state->getter.GetKey(*item, is_case_sensitive);
                          if (CheckHashable(heap, key) && !Contains(heap, state->seen, key)) {
                            return state->seen.as<List>().Append(key);
                          }
                        }
                        return false;
                      });
}

Value Default(Heap& heap, Arguments& a) {
  if (!a.positional[0].is_undefined() &&
      (!BoolOr(a.positional[2], false) || IsTrue(a.positional[0]))) {
    return a.positional[0];
  }
  return a.positional[1].is_missing() ? heap.Literal("") : a.positional[1];
}

Value Join(Heap& heap, Arguments& a) {
  const AttributeGetter getter(heap, a.positional[2]);
  const Value separator =
      a.positional[1].is_missing() ? heap.Literal("") : ToText(heap, a.positional[1]);
  TextBuilder builder(heap);
  const NextItem next = Iterate(heap, a.positional[0]);
  Value item;
  for (bool is_first = true; next(&item); is_first = false) {
    if (!is_first) {
      builder.Append(separator);
    }
    AppendText(heap, getter.Get(item), builder);
  }
  return builder.TakeValue();
}

Value First(Heap& heap, Arguments& a) {
  Value item;
  return Iterate(heap, a.positional[0])(&item)
             ? item
             : heap.Undefined("No first item, sequence was empty.");
}

// Returns an iterator over the items from last to first, or nullopt if they have no order.
std::optional<NextItem> IterateReversed(Heap& heap, const Value& value) {
  Value items = value;
  if (value.is(Kind::kDict) || value.is(Kind::kView)) {
    items = ToList(heap, value);
  } else if (!value.is_sequence() && !value.is_string() && !value.is(Kind::kRange) &&
             !value.is_undefined()) {
    return std::nullopt;
  }
  return [&heap, items, left = *LengthOf(items)](Value* item) mutable {
    if (left == 0 || !heap.budget().Spend()) {
      return false;
    }
    *item = ItemAt(heap, items, --left);
    return true;
  };
}

Value Last(Heap& heap, Arguments& a) {
  const std::optional<NextItem> next = IterateReversed(heap, a.positional[0]);
  Value item;
  if (!next.has_value()) {
    return heap.Fail(Cat("'", TypeName(a.positional[0]), "' object is not reversible"));
  }
  return (*next)(&item) ? item : heap.Undefined("No last item, sequence was empty.");
}

Value Reverse(Heap& heap, Arguments& a) {
  const Value& value = a.positional[0];
  if (value.is_string()) {
    return Slice(heap, value, Value::None(), Value::None(), Value::Int(-1));
  }
  if (std::optional<NextItem> next = IterateReversed(heap, value)) {
    return MakeIterator(heap, value, *std::move(next));
  }
  Value list = ToList(heap, value);
  std::reverse(list.as<List>().items.begin(), list.as<List>().items.end());
  return list;
}

Value Length(Heap& heap, Arguments& a) {
  const std::optional<int64_t> length = LengthOf(a.positional[0]);
  return length.has_value()
             ? Value::Int(*length)
             : heap.Fail(Cat("object of type '", TypeName(a.positional[0]), "' has no len()"));
}

Value Items(Heap& heap, Arguments& a) {
  return MakeIterator(heap,
                      a.positional[0],
                      [&heap, value = a.positional[0], next = NextItem()](Value* item) mutable {
                        if (next == nullptr) {
                          if (!value.is_undefined() && !value.is(Kind::kDict)) {
                            heap.Fail("Can only get item pairs from a mapping.");
                            return false;
                          }
                          next = Iterate(heap,
                                         value.is_undefined()
                                             ? value
                                             : heap.New<View>(Kind::kView, value, ViewOf::kItems));
                        }
                        return next(item);
                      });
}

Value Sum(Heap& heap, Arguments& a) {
  const AttributeGetter getter(heap, a.positional[1]);
  Value total = a.positional[2].is_missing() ? Value::Int(0) : a.positional[2];
  if (total.is_string()) {
    return heap.Fail("sum() can't sum strings");
  }
  const NextItem next = Iterate(heap, a.positional[0]);
  Value item;
  while (next(&item)) {
    total = Binary(heap, BinaryOp::kAdd, total, getter.Get(item));
  }
  return total;
}

Value Batch(Heap& heap, Arguments& a) {
  const int64_t size = IntegerOr(heap, a.positional[1], 1);
  const Value fill = a.positional[2];
  return MakeIterator(heap,
                      a.positional[0],
                      [&heap,
                       size,
                       fill,
                       next = Iterate(heap, a.positional[0]),
                       pending = Value::Missing(),
                       is_done = false](Value* batch) mutable {
                        *batch = heap.New<List>(Kind::kList);
                        auto& list = batch->as<List>();
                        if (!pending.is_missing()) {
                          list.Append(std::exchange(pending, Value::Missing()));
                        }
                        Value item;
                        while (!is_done && next(&item)) {
                          if (static_cast<int64_t>(list.items.size()) == size) {
                            pending = std::exchange(item, Value());
                            return true;
                          }
                          list.Append(std::exchange(item, Value()));
                        }
                        is_done = true;
                        if (list.items.empty()) {
                          return false;
                        }
                        while (!fill.is_missing() && !fill.is(Kind::kNone) &&
                               static_cast<int64_t>(list.items.size()) < size &&
                               heap.budget().Spend()) {
                          list.Append(fill);
                        }
                        return true;
                      });
}

// The filter or test that a template's `map` or `select` applies to each item.
struct Applied {
  const Builtin* builtin = nullptr;  // null: the item is not changed
  Arguments arguments;               // without the item
  AttributeGetter getter;
  std::optional<Value> otherwise;  // replaces an undefined item
  NextItem next;

  Value Apply(Heap& heap, Value item) {
    item = getter.Get(std::move(item));
    if (otherwise.has_value() && item.is_undefined()) {
      item = *otherwise;
    }
    if (builtin == nullptr) {
      return item;
    }
    Arguments copy = arguments;
    copy.positional.insert(copy.positional.begin(), std::move(item));
    return CallBuiltin(heap, *builtin, copy);
  }
};

// Reads the arguments of map that follow the value. Returns null after a failure.
std::shared_ptr<Applied> ReadMap(Heap& heap, Arguments a) {
  const auto take_named = [&a](std::string_view name) {
    Value value = Value::Missing();
    const auto found = std::find_if(a.named.begin(), a.named.end(), [name](const auto& each) {
      return each.first.text() == name;
    });
    if (found != a.named.end()) {
      value = std::move(found->second);
      a.named.erase(found);
    }
    return value;
  };
  if (a.positional.empty()) {
    const Value attribute = take_named("attribute");
    const Value otherwise = take_named("default");
    if (attribute.is_missing() || !a.named.empty()) {
      heap.Fail("map requires a filter or an attribute");
      return nullptr;
    }
    auto applied =
        std::make_shared<Applied>(Applied{nullptr, {}, AttributeGetter(heap, attribute), {}, {}});
    if (!otherwise.is_missing() && !otherwise.is(Kind::kNone)) {
      applied->otherwise = otherwise;
    }
    return applied;
  }
  const Builtin* const filter =
      a.positional[0].is_string() ? FindFilter(a.positional[0].text()) : nullptr;
  if (filter == nullptr) {
    heap.Fail("map: no such filter");
    return nullptr;
  }
  a.positional.erase(a.positional.begin());
  return std::make_shared<Applied>(
      Applied{filter, std::move(a), AttributeGetter(heap, Value::None()), {}, {}});
}

std::shared_ptr<Applied> ReadSelect(Heap& heap, Arguments a, bool has_attribute) {
  Value attribute = Value::None();
  if (has_attribute) {
    if (a.positional.empty()) {
      heap.Fail("Missing parameter for attribute name");
      return nullptr;
    }
    attribute = a.positional[0];
    a.positional.erase(a.positional.begin());
  }
  const Builtin* test = nullptr;
  if (!a.positional.empty()) {
    test = a.positional[0].is_string() ? FindTest(a.positional[0].text()) : nullptr;
    if (test == nullptr) {
      heap.Fail("select: no such test");
      return nullptr;
    }
    a.positional.erase(a.positional.begin());
  }
  return std::make_shared<Applied>(
      Applied{test, std::move(a), AttributeGetter(heap, attribute), {}, {}});
}

Value Map(Heap& heap, Arguments& a) {
  Value value = a.positional[0];
  a.positional.erase(a.positional.begin());
  return MakeIterator(
      heap, value, [&heap, value, a, applied = std::shared_ptr<Applied>()](Value* item) mutable {
        if (applied == nullptr) {
          if (!IsTrue(value) || (applied = ReadMap(heap, a)) == nullptr) {
            return false;
          }
          applied->next = Iterate(heap, value);
        }
        if (!applied->next(item)) {
          return false;
        }
        *item = applied->Apply(heap, std::move(*item));
        return heap.budget().ok();
      });
}

template <bool is_kept, bool has_attribute>
Value Select(Heap& heap, Arguments& a) {
  Value value = a.positional[0];
  a.positional.erase(a.positional.begin());
  return MakeIterator(
      heap, value, [&heap, value, a, applied = std::shared_ptr<Applied>()](Value* item) mutable {
        if (applied == nullptr) {
          if (!IsTrue(value) || (applied = ReadSelect(heap, a, has_attribute)) == nullptr) {
            return false;
          }
          applied->next = Iterate(heap, value);
        }
        while (applied->next(item)) {
          if (IsTrue(applied->Apply(heap, *item)) == is_kept) {
            return heap.budget().ok();
          }
        }
        return false;
      });
}

constexpr Builtin kFilters[] = {
    {"batch", "linecount ?fill_with", Batch},
    {"count", "", Length},
    {"d", "?default_value ?boolean", Default},
    {"default", "?default_value ?boolean", Default},
    {"dictsort", "?case_sensitive ?by ?reverse", DictSort},
    {"first", "", First},
    {"items", "", Items},
    {"join", "?d ?attribute", Join},
    {"last", "", Last},
    {"length", "", Length},
    {"list", "", [](Heap& heap, Arguments& a) { return ToList(heap, a.positional[0]); }},
    {"map", "*", Map},
    {"max",
     "?case_sensitive ?attribute",
     [](Heap& heap, Arguments& a) { return Extreme(heap, a, true); }},
    {"min",
     "?case_sensitive ?attribute",
     [](Heap& heap, Arguments& a) { return Extreme(heap, a, false); }},
    {"reject", "*", Select<false, false>},
    {"rejectattr", "*", Select<false, true>},
    {"reverse", "", Reverse},
    {"select", "*", Select<true, false>},
    {"selectattr", "*", Select<true, true>},
    {"sort", "?reverse ?case_sensitive ?attribute", Sort},
    {"sum", "?attribute ?start", Sum},
    {"unique", "?case_sensitive ?attribute", Unique},
};

}  // namespace

std::span<const Builtin> SequenceFilters() { return kFilters; }

}  // namespace quire
