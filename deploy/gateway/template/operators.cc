#include "deploy/gateway/template/operators.h"

#include <algorithm>
#include <string>
#include <utility>

#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/loop.h"
#include "deploy/gateway/template/unicode.h"

namespace quire {
namespace {

// Returns a number as a type that holds every 64-bit integer and every double exactly.
long double Wide(const Value& value) {
  return value.is_integer() ? static_cast<long double>(value.integer()) : value.number();
}

bool EqualItems(Heap& heap, const List& a, const List& b) {
  if (a.items.size() != b.items.size()) {
    return false;
  }
  return std::equal(
      a.items.begin(), a.items.end(), b.items.begin(), [&](const auto& x, const auto& y) {
        return Equal(heap, x, y);
      });
}

bool EqualDicts(Heap& heap, const Dict& a, Dict& b) {
  if (a.items.size() != b.items.size()) {
    return false;
  }
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* const other = b.Find(item.first);
    return other != nullptr && Equal(heap, item.second, *other);
  });
}

// Returns true if iterating the container gives the item. Stops at the item, so a generator does
// not run on.
bool ContainsItem(Heap& heap, const Value& container, const Value& item) {
  const NextItem next = Iterate(heap, container);
  Value element;
  while (next(&element)) {
    if (Equal(heap, element, item)) {
      return true;
    }
  }
  return false;
}

NextItem IterateString(const Value& value) {
  return [value, offset = size_t{0}](Value* item) mutable {
    auto& string = value.as<String>();
    if (offset >= string.text.size() || !string.heap().budget().Spend()) {
      return false;
    }
    const size_t end = offset + OffsetOf(string.text.substr(offset), 1);
    *item = string.heap().Part(value, offset, end);
    offset = end;
    return true;
  };
}

NextItem IterateDict(const Value& dict, ViewOf what) {
  return [dict, what, i = size_t{0}](Value* item) mutable {
    auto& items = dict.as<Dict>().items;
    Heap& heap = dict.object()->heap();
    if (i >= items.size() || !heap.budget().Spend()) {
      return false;
    }
    const auto& [key, value] = items[i++];
    if (what == ViewOf::kItems) {
      *item = heap.New<List>(Kind::kTuple);
      item->as<List>().Append(key);
      item->as<List>().Append(value);
    } else {
      *item = what == ViewOf::kKeys ? key : value;
    }
    return true;
  };
}

std::optional<int64_t> SliceBound(Heap& heap, const Value& bound) {
  if (bound.is_integer()) {
    return bound.integer();
  }
  if (!bound.is(Kind::kNone) && !bound.is_missing()) {
    heap.Fail("slice indices must be integers or None");
  }
  return std::nullopt;
}

// Returns the byte offset of each code point of a string, and the offset of the string's end.
// Returns an empty list if the offsets exceed the budget.
std::vector<uint32_t> Offsets(Heap& heap, String& string) {
  std::vector<uint32_t> offsets;
  const int64_t num_offsets = string.length() + 1;
  if (heap.budget().Fits(num_offsets * static_cast<int64_t>(sizeof(offsets[0])))) {
    offsets.reserve(static_cast<size_t>(num_offsets));
    for (std::string_view rest = string.text; !rest.empty(); TakeCodePoint(rest)) {
      offsets.push_back(static_cast<uint32_t>(string.text.size() - rest.size()));
    }
    offsets.push_back(static_cast<uint32_t>(string.text.size()));
  }
  return offsets;
}

Value SliceString(Heap& heap, const Value& value, int64_t start, int64_t step, int64_t count) {
  auto& string = value.as<String>();
  const bool is_ascii = string.is_ascii();
  if (!is_ascii) {
    heap.budget().SpendOnText(4 * string.text.size());
  }
  if (step == 1) {
    size_t begin = static_cast<size_t>(start);
    size_t end = static_cast<size_t>(start + count);
    if (!is_ascii) {
      begin = OffsetOf(string.text, start);
      end = begin + OffsetOf(string.text.substr(begin), count);
    }
    return heap.budget().SpendOnText(end - begin) ? heap.Part(value, begin, end) : Value();
  }
  std::vector<uint32_t> offsets;
  if (!is_ascii && (offsets = Offsets(heap, string)).empty()) {
    return Value();
  }
  TextBuilder builder(heap);
  for (int64_t i = 0; i < count && heap.budget().Spend(); ++i) {
    const auto place = static_cast<size_t>(start + i * step);
    is_ascii ? builder.Append(value, place, place + 1)
             : builder.Append(value, offsets[place], offsets[place + 1]);
  }
  return builder.TakeValue();
}

// Macros are compared by identity. Methods are not comparable: here each use of a method makes a
// new object, while Python compares the objects to which the methods are bound.
bool EqualFunctions(Heap& heap, const Function& a, const Function& b) {
  if (&a != &b && a.name == b.name && !a.name.starts_with("macro ")) {
    heap.Fail("methods cannot be compared");
  }
  return &a == &b;
}

}  // namespace

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kView:
      return LengthOf(value) != 0;
    default:
      return true;
  }
}

bool Equal(Heap& heap, const Value& a, const Value& b) {
  const DepthGuard guard(heap.budget());
  if (!guard.ok() || !heap.budget().Spend()) {
    return false;
  }
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) {
      return a.integer() == b.integer();
    }
    return Wide(a) == Wide(b);
  }
  if (a.kind() != b.kind()) {
    return false;
  }
  switch (a.kind()) {
    case Kind::kString:
      heap.budget().SpendOnText(std::min(a.text().size(), b.text().size()));
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
      return EqualItems(heap, a.as<List>(), b.as<List>());
    case Kind::kDict:
      return EqualDicts(heap, a.as<Dict>(), b.as<Dict>());
    case Kind::kRange:
      return EqualItems(heap, ToList(heap, a).as<List>(), ToList(heap, b).as<List>());
    case Kind::kView:
      heap.Fail("views cannot be compared");
      return false;
    case Kind::kFunction:
      return EqualFunctions(heap, a.as<Function>(), b.as<Function>());
    default:
      return a.object() == b.object() || a.is_undefined();
  }
}

bool Less(Heap& heap, const Value& a, const Value& b) {
  const DepthGuard guard(heap.budget());
  if (!guard.ok() || !heap.budget().Spend()) {
    return false;
  }
  if (a.is_integer() && b.is_integer()) {
    return a.integer() < b.integer();
  }
  if (a.is_number() && b.is_number()) {
    return Wide(a) < Wide(b);
  }
  if (a.is_string() && b.is_string()) {
    heap.budget().SpendOnText(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();  // in UTF-8 the order of bytes is that of code points
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const auto& x = a.as<List>().items;
    const auto& y = b.as<List>().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!Equal(heap, x[i], y[i])) {
        return Less(heap, x[i], y[i]);
      }
    }
    return x.size() < y.size();
  }
  if (a.is_undefined() || b.is_undefined()) {
    heap.Fail(UndefinedMessage(a.is_undefined() ? a : b));
  } else {
    heap.Fail(Cat("'", TypeName(a), "' and '", TypeName(b), "' have no order"));
  }
  return false;
}

bool Contains(Heap& heap, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        heap.Fail("'in <string>' requires string as left operand");
        return false;
      }
      heap.budget().SpendOnText(4 * (container.text().size() + item.text().size()));
      return FindText(container.text(), item.text()) != std::string_view::npos;
    case Kind::kDict:
      return CheckHashable(heap, item) && container.as<Dict>().Find(item) != nullptr;
    case Kind::kView: {
      const auto& view = container.as<View>();
      if (view.what == ViewOf::kKeys) {
        return Contains(heap, view.dict, item);
      }
      return ContainsItem(heap, container, item);
    }
    default:
      return ContainsItem(heap, container, item);
  }
}

bool CheckHashable(Heap& heap, const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
    case Kind::kDict:
    case Kind::kView:
      heap.Fail(Cat("unhashable type: '", TypeName(value), "'"));
      return false;
    case Kind::kTuple:
      return std::all_of(value.as<List>().items.begin(),
                         value.as<List>().items.end(),
                         [&](const Value& item) { return CheckHashable(heap, item); });
    default:
      return true;
  }
}

std::optional<int64_t> LengthOf(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return value.as<String>().length();
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.as<List>().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as<Dict>().items.size());
    case Kind::kRange:
      return value.as<Range>().length;
    case Kind::kView:
      return LengthOf(value.as<View>().dict);
    case Kind::kLoop:
      return value.as<Loop>().length();
    default:
      return std::nullopt;
  }
}

Value ItemAt(Heap& heap, const Value& sequence, int64_t index) {
  switch (sequence.kind()) {
    case Kind::kRange:
      return Value::Int(sequence.as<Range>().start + index * sequence.as<Range>().step);
    case Kind::kString: {
      auto& string = sequence.as<String>();
      size_t start = static_cast<size_t>(index);
      if (!string.is_ascii()) {
        heap.budget().SpendOnText(4 * string.text.size());
        start = OffsetOf(string.text, index);
      }
      const std::string_view rest = string.text.substr(start);
      return heap.Part(sequence, start, start + OffsetOf(rest, 1));
    }
    default:
      return sequence.as<List>().items[static_cast<size_t>(index)];
  }
}

bool IsIterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kView:
    case Kind::kIterator:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

NextItem Iterate(Heap& heap, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return [](Value*) { return false; };
    case Kind::kString:
      return IterateString(value);
    case Kind::kDict:
      return IterateDict(value, ViewOf::kKeys);
    case Kind::kView:
      return IterateDict(value.as<View>().dict, value.as<View>().what);
    case Kind::kIterator:
      return [value](Value* item) {
        const Iterator& iterator = value.as<Iterator>();
        const DepthGuard guard(iterator.heap().budget());
        return guard.ok() && iterator.heap().budget().Spend() && iterator.next != nullptr &&
               iterator.next(item);
      };
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      return [value, i = int64_t{0}](Value* item) mutable {
        Heap& own_heap = value.object()->heap();
        if (i >= *LengthOf(value) || !own_heap.budget().Spend()) {
          return false;
        }
        *item = ItemAt(own_heap, value, i++);
        return true;
      };
    default:
      heap.Fail(Cat("'", TypeName(value), "' object is not iterable"));
      return [](Value*) { return false; };
  }
}

Value ToList(Heap& heap, const Value& value, Kind kind) {
  Value result = heap.New<List>(kind);
  const NextItem next = Iterate(heap, value);
  Value item;
  while (next(&item) && result.as<List>().Append(std::exchange(item, Value()))) {
  }
  return result;
}

Value Slice(
    Heap& heap, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (!value.is_sequence() && !value.is_string() && !value.is(Kind::kRange)) {
    return heap.Fail(value.is_undefined() ? UndefinedMessage(value)
                                          : Cat("'", TypeName(value), "' object cannot be sliced"));
  }
  const int64_t length = *LengthOf(value);
  // Clamps numbers, so that sums cannot overflow. A number beyond the length acts like the length.
  const auto clamp = [length](int64_t n) { return std::clamp(n, -length - 1, length + 1); };
  const int64_t by = clamp(SliceBound(heap, step).value_or(1));
  const auto first = SliceBound(heap, start);
  const auto last = SliceBound(heap, stop);
  if (by == 0) {
    return heap.Fail("slice step cannot be zero");
  }
  // As PySlice_AdjustIndices.
  const int64_t low = by < 0 ? -1 : 0;
  const int64_t high = by < 0 ? length - 1 : length;
  const auto place = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound.has_value()) {
      return otherwise;
    }
    const int64_t from_start = clamp(*bound) + (*bound < 0 ? length : 0);
    return std::clamp(from_start, low, high);
  };
  const int64_t from = place(first, by < 0 ? high : low);
  const int64_t to = place(last, by < 0 ? low : high);
  const int64_t count =
      std::max<int64_t>(0, by < 0 ? (from - to - by - 1) / -by : (to - from + by - 1) / by);
  if (!heap.budget().ok()) {
    return Value();
  }
  if (value.is_string()) {
    return SliceString(heap, value, from, by, count);
  }
  if (value.is(Kind::kRange)) {
    const auto& range = value.as<Range>();
    return heap.New<Range>(Kind::kRange,
                           range.start + from * range.step,
                           range.start + to * range.step,
                           range.step * by,
                           count);
  }
  Value result = heap.New<List>(value.kind());
  for (int64_t i = 0; i < count && heap.budget().Spend(); ++i) {
    result.as<List>().Append(ItemAt(heap, value, from + i * by));
  }
  return result;
}

}  // namespace quire
