#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "deploy/gateway/template/builtins.h"
#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/format.h"
#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/python_text.h"
#include "deploy/gateway/template/unicode.h"

namespace quire {
namespace {

bool CheckString(Heap& heap, const Value& value) {
  if (!value.is_string()) {
    heap.Fail(Cat("a string is expected, not '", TypeName(value), "'"));
  }
  return value.is_string();
}

// Returns the text of an argument. Fails the rendering if the argument is no string.
std::string_view TextOf(Heap& heap, const Value& value) {
  return CheckString(heap, value) ? value.text() : "";
}

// Appends the bytes [begin, end) of a string to the list.
bool AppendPart(Heap& heap, const Value& value, size_t begin, size_t end, Value& list) {
  return heap.budget().Spend() && list.as<List>().Append(heap.Part(value, begin, end));
}

// Calls `use` with begin and end of each word, until `use` returns false.
template <class Use>
void ForEachWord(std::string_view text, const Use& use) {
  constexpr size_t kNone = std::string_view::npos;
  size_t begin = kNone;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t place = text.size() - rest.size();
    const bool is_space = IsPythonSpace(TakeCodePoint(rest));
    if (is_space && begin != kNone) {
      if (!use(begin, place)) {
        return;
      }
      begin = kNone;
    } else if (!is_space && begin == kNone) {
      begin = place;
    }
  }
  if (begin != kNone) {
    use(begin, text.size());
  }
}

// Splits at white space, at most max_splits times (negative: no limit). The remaining words stay
// together: the last ones, or the first ones if `from_right`.
Value SplitWords(Heap& heap, const Value& value, int64_t max_splits, bool from_right) {
  const std::string_view text = value.text();
  int64_t num_words = 0;
  ForEachWord(text, [&](size_t, size_t) { return ++num_words > 0; });
  const int64_t num_apart = max_splits < 0 ? num_words : std::min(num_words, max_splits);
  const int64_t num_together = num_words - num_apart;
  Value list = heap.New<List>(Kind::kList);
  int64_t i = 0;
  ForEachWord(text, [&](size_t begin, size_t end) {
    const int64_t place = i++;
    if (from_right && num_together > 0) {
      return place < num_together - 1 ||
             AppendPart(heap, value, place < num_together ? 0 : begin, end, list);
    }
    const bool is_rest = place == num_apart;
    return AppendPart(heap, value, begin, is_rest ? text.size() : end, list) && !is_rest;
  });
  return list;
}

// Calls `add` with begin and end of each part, until `add` returns false.
template <class Add>
void ForEachPart(std::string_view text,
                 std::string_view separator,
                 int64_t max_splits,
                 const Add& add) {
  size_t start = 0;
  while (max_splits-- != 0) {
    const size_t place = FindText(text, separator, start);
    if (place == std::string_view::npos || !add(start, place)) {
      break;
    }
    start = place + separator.size();
  }
  add(start, text.size());
}

Value SplitAt(Heap& heap, const Value& value, std::string_view separator, int64_t max_splits) {
  Value list = heap.New<List>(Kind::kList);
  ForEachPart(value.text(), separator, max_splits, [&](size_t begin, size_t end) {
    return AppendPart(heap, value, begin, end, list);
  });
  return list;
}

// Splits from the right, by searching the reversed bytes from the left.
Value SplitAtFromRight(Heap& heap,
                       const Value& value,
                       std::string_view separator,
                       int64_t max_splits) {
  const std::string_view text = value.text();
  Value list = heap.New<List>(Kind::kList);
  ForEachPart(std::string(text.rbegin(), text.rend()),
              std::string(separator.rbegin(), separator.rend()),
              max_splits,
              [&](size_t begin, size_t end) {
                return AppendPart(heap, value, text.size() - end, text.size() - begin, list);
              });
  auto& items = list.as<List>().items;
  std::reverse(items.begin(), items.end());
  return list;
}

Value Split(Heap& heap, Arguments& a, bool from_right) {
  const Value& value = a.positional[0];
  const std::string_view text = value.text();
  const Value& separator = a.positional[1];
  const int64_t max_splits = std::max<int64_t>(IntegerOr(heap, a.positional[2], -1), -1);
  if (!heap.budget().SpendOnText(8 * text.size()) ||
      !heap.budget().Fits(static_cast<int64_t>(text.size()))) {
    return Value();
  }
  if (separator.is_missing() || separator.is(Kind::kNone)) {
    return SplitWords(heap, value, max_splits, from_right);
  }
  const std::string_view at = TextOf(heap, separator);
  if (at.empty()) {
    return heap.Fail("empty separator");
  }
  return from_right ? SplitAtFromRight(heap, value, at, max_splits)
                    : SplitAt(heap, value, at, max_splits);
}

Value Case(Heap& heap, Arguments& a, LetterCase letter_case) {
  const auto& string = a.positional[0].as<String>();
  heap.budget().SpendOnText(16 * string.text.size());
  return heap.budget().Fits(4 * static_cast<int64_t>(string.text.size()))
             ? heap.Str(ChangeCase(string.text, letter_case), string.has_client_text())
             : Value();
}

template <LetterCase letter_case>
Value CaseMethod(Heap& heap, Arguments& a) {
  return Case(heap, a, letter_case);
}

template <TextClass text_class>
Value ClassMethod(Heap& heap, Arguments& a) {
  heap.budget().SpendOnText(4 * a.positional[0].text().size());
  return Value::Bool(IsTextClass(a.positional[0].text(), text_class));
}

template <bool left, bool right>
Value StripMethod(Heap& heap, Arguments& a) {
  return StripText(heap, a.positional[0], a.positional[1], left, right);
}

template <bool at_start>
Value HasAffix(Heap& heap, Arguments& a) {
  const std::string_view text = a.positional[0].text();
  const auto matches = [&](const Value& affix) {
    const std::string_view part = TextOf(heap, affix);
    return heap.budget().Spend() && (at_start ? text.starts_with(part) : text.ends_with(part));
  };
  if (!a.positional[1].is(Kind::kTuple)) {
    return Value::Bool(matches(a.positional[1]));
  }
  const auto& affixes = a.positional[1].as<List>().items;
  return Value::Bool(std::any_of(affixes.begin(), affixes.end(), matches));
}

template <bool at_start>
Value RemoveAffix(Heap& heap, Arguments& a) {
  const std::string_view text = a.positional[0].text();
  const std::string_view part = TextOf(heap, a.positional[1]);
  const bool is_there = at_start ? text.starts_with(part) : text.ends_with(part);
  const size_t size = is_there ? part.size() : 0;
  return heap.Part(
      a.positional[0], at_start ? size : 0, at_start ? text.size() : text.size() - size);
}

template <bool must_be_there>
Value FindMethodOf(Heap& heap, Arguments& a) {
  const std::string_view text = a.positional[0].text();
  const std::string_view part = TextOf(heap, a.positional[1]);
  heap.budget().SpendOnText(4 * (text.size() + part.size()));
  const size_t place = FindText(text, part);
  if (place != std::string_view::npos) {
    return Value::Int(NumCodePoints(text.substr(0, place)));
  }
  return must_be_there ? heap.Fail("substring not found") : Value::Int(-1);
}

Value Count(Heap& heap, Arguments& a) {
  const std::string_view text = a.positional[0].text();
  const std::string_view part = TextOf(heap, a.positional[1]);
  heap.budget().SpendOnText(4 * (text.size() + part.size()));
  if (part.empty()) {
    return Value::Int(NumCodePoints(text) + 1);
  }
  int64_t count = 0;
  for (size_t place = FindText(text, part);
       place != std::string_view::npos && heap.budget().Spend();
       place = FindText(text, part, place + part.size())) {
    ++count;
  }
  return Value::Int(count);
}

Value Join(Heap& heap, Arguments& a) {
  TextBuilder builder(heap);
  const NextItem next = Iterate(heap, a.positional[1]);
  Value item;
  for (bool is_first = true; next(&item); is_first = false) {
    if (!is_first) {
      builder.Append(a.positional[0]);
    }
    if (CheckString(heap, item)) {
      builder.Append(item);
    }
  }
  return builder.TakeValue();
}

Value Replace(Heap& heap, Arguments& a) {
  return CheckString(heap, a.positional[2]) ? ReplaceText(heap,
                                                          a.positional[0],
                                                          TextOf(heap, a.positional[1]),
                                                          a.positional[2],
                                                          IntegerOr(heap, a.positional[3], -1))
                                            : Value();
}

constexpr Builtin kMethods[] = {
    {"split", "?sep ?maxsplit", [](Heap& heap, Arguments& a) { return Split(heap, a, false); }},
    {"rsplit", "?sep ?maxsplit", [](Heap& heap, Arguments& a) { return Split(heap, a, true); }},
    {"splitlines",
     "?keepends",
     [](Heap& heap, Arguments& a) {
       return SplitLines(heap, a.positional[0], BoolOr(a.positional[1], false));
     }},
    {"strip", "?_", StripMethod<true, true>},
    {"lstrip", "?_", StripMethod<true, false>},
    {"rstrip", "?_", StripMethod<false, true>},
    {"startswith", "_", HasAffix<true>},
    {"endswith", "_", HasAffix<false>},
    {"removeprefix", "_", RemoveAffix<true>},
    {"removesuffix", "_", RemoveAffix<false>},
    {"replace", "_ _ ?_", Replace},
    {"upper", "", CaseMethod<LetterCase::kUpper>},
    {"lower", "", CaseMethod<LetterCase::kLower>},
    {"title", "", CaseMethod<LetterCase::kTitle>},
    {"capitalize", "", CaseMethod<LetterCase::kCapitalize>},
    {"count", "_", Count},
    {"find", "_", FindMethodOf<false>},
    {"index", "_", FindMethodOf<true>},
    {"join", "_", Join},
    {"format", "*", FormatMethod},
    {"isdigit", "", ClassMethod<TextClass::kDigit>},
    {"isdecimal", "", ClassMethod<TextClass::kDecimal>},
    {"isalpha", "", ClassMethod<TextClass::kAlpha>},
    {"isalnum", "", ClassMethod<TextClass::kAlnum>},
    {"isspace", "", ClassMethod<TextClass::kSpace>},
    {"islower", "", ClassMethod<TextClass::kLower>},
    {"isupper", "", ClassMethod<TextClass::kUpper>},
};

}  // namespace

std::span<const Builtin> StringMethods() { return kMethods; }

Value StripText(Heap& heap, const Value& value, const Value& characters, bool left, bool right) {
  std::u32string set;
  const bool is_space_stripped = characters.is_missing() || characters.is(Kind::kNone);
  if (!is_space_stripped) {
    for (std::string_view rest = TextOf(heap, characters); !rest.empty() && set.size() <= 256;) {
      set += TakeCodePoint(rest);
    }
  }
  if (set.size() > 256) {  // bounds the search for each character
    return heap.Fail("too many characters to strip");
  }
  const auto is_stripped = [&](char32_t c) {
    return is_space_stripped ? IsPythonSpace(c) : set.find(c) != std::u32string::npos;
  };
  std::string_view text = value.text();  // the part that is not stripped
  heap.budget().SpendOnText(text.size() * (1 + set.size() / 16));
  while (left && !text.empty()) {
    std::string_view rest = text;
    if (!is_stripped(TakeCodePoint(rest))) {
      break;
    }
    text = rest;
  }
  if (right) {
    text = StripRight(text, is_stripped);
  }
  if (text.size() == value.text().size()) {
    return value;
  }
  const auto begin = static_cast<size_t>(text.data() - value.text().data());
  Value result = heap.Part(value, begin, begin + text.size());
  result.as<String>().is_markup = value.as<String>().is_markup;
  return result;
}

Value ReplaceText(Heap& heap,
                  const Value& value,
                  std::string_view old_part,
                  const Value& new_part,
                  int64_t count) {
  const std::string_view text = value.text();
  TextBuilder builder(heap);
  size_t start = 0;
  size_t place = 0;
  while (count-- != 0 && heap.budget().Spend()) {
    place = old_part.empty() ? place : FindText(text, old_part, start);
    if (place == std::string_view::npos) {
      break;
    }
    builder.Append(value, start, place);
    builder.Append(new_part);
    start = place + old_part.size();
    if (old_part.empty()) {  // an empty part is found before each character and at the end
      if (place == text.size()) {
        break;
      }
      place += OffsetOf(text.substr(place), 1);
    }
  }
  heap.budget().SpendOnText(4 * (text.size() + old_part.size()));
  builder.Append(value, std::min(start, text.size()));
  return builder.TakeValue();
}

Value SplitLines(Heap& heap, const Value& value, bool keep_ends) {
  const std::string_view text = value.text();
  Value lines = heap.New<List>(Kind::kList);
  heap.budget().SpendOnText(4 * text.size());
  size_t start = 0;
  for (std::string_view rest = text; !rest.empty() && heap.budget().ok();) {
    const size_t end = text.size() - rest.size();
    const char32_t c = TakeCodePoint(rest);
    const bool is_end = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
    if (is_end || rest.empty()) {
      if (c == '\r' && rest.starts_with('\n')) {
        rest.remove_prefix(1);
      }
      const size_t next = text.size() - rest.size();
      const size_t stop = is_end && !keep_ends ? end : next;
      lines.as<List>().Append(heap.Part(value, start, stop));
      start = next;
    }
  }
  return lines;
}

}  // namespace quire
