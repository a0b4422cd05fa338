#include <time.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "deploy/gateway/template/builtins.h"
#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/python_text.h"

namespace quire {
namespace {

Value MakeRange(Heap& heap, Arguments& a) {
  constexpr int64_t kMaxRange = 100'000;  // MAX_RANGE of jinja2's sandbox
  if (!a.named.empty() || a.positional.empty() || a.positional.size() > 3) {
    return heap.Fail("range takes one to three integers");
  }
  std::array<int64_t, 3> numbers = {0, 0, 1};
  for (size_t i = 0; i < a.positional.size(); ++i) {
    numbers[a.positional.size() == 1 ? 1 : i] = IntegerOr(heap, a.positional[i], 0);
  }
  const auto [start, stop, step] = numbers;
  constexpr int64_t kMaxNumber = int64_t{1} << 60;  // so that sums and differences fit in 64 bits
  if (std::any_of(numbers.begin(),
                  numbers.end(),
                  [](int64_t n) { return n > kMaxNumber || n < -kMaxNumber; }) ||
      step == 0) {
    return heap.Fail("range: the step is zero, or a number too large");
  }
  const int64_t length = std::max<int64_t>(
      0, step > 0 ? (stop - start + step - 1) / step : (start - stop - step - 1) / -step);
  if (length > kMaxRange) {
    return heap.Fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  }
  return heap.New<Range>(Kind::kRange, start, stop, step, length);
}

bool AddPair(Heap& heap, const Value& pair, Value& dict) {
  const Value items = ToList(heap, pair);
  if (items.as<List>().items.size() != 2) {
    heap.Fail("dict: each item must have two elements");
    return false;
  }
  return CheckHashable(heap, items.as<List>().items[0]) &&
         dict.as<Dict>().Set(items.as<List>().items[0], items.as<List>().items[1]);
}

// dict(mapping or list of pairs, name=value, ...)
Value MakeDict(Heap& heap, Arguments& a) {
  Value dict = heap.New<Dict>(Kind::kDict);
  if (a.positional.size() > 1) {
    return heap.Fail("dict takes at most one argument by position");
  }
  if (!a.positional.empty()) {
    Value source = a.positional[0];
    if (source.is_undefined()) {  // Python would call source.keys(), which fails
      return heap.Fail(UndefinedMessage(source));
    }
    if (source.is(Kind::kDict)) {
      source = heap.New<View>(Kind::kView, source, ViewOf::kItems);
    }
    const NextItem next = Iterate(heap, source);
    Value pair;
    while (next(&pair) && AddPair(heap, pair, dict)) {
    }
  }
  for (auto& [key, value] : a.named) {
    dict.as<Dict>().Set(key, std::move(value));
  }
  return dict;
}

Value MakeNamespace(Heap& heap, Arguments& a) {
  const Value attributes = MakeDict(heap, a);
  if (!heap.budget().ok()) {
    return Value();
  }
  Value result = heap.New<Dict>(Kind::kNamespace);
  result.as<Dict>().is_namespace = true;
  heap.Keep(result);
  for (const auto& [key, value] : attributes.as<Dict>().items) {
    if (key.is_string() && key.text().starts_with('_')) {
      return heap.Fail("a namespace stores no names that begin with an underscore");
    }
    result.as<Dict>().Add(key, value);
  }
  return result;
}

Value RaiseException(Heap& heap, Arguments& a) {
  if (a.positional.size() + a.named.size() != 1) {
    return heap.Fail("raise_exception takes one message");
  }
  const Value text = ToText(heap, a.positional.empty() ? a.named[0].second : a.positional[0]);
  heap.budget().Fail("TEMPLATE_EXCEPTION", text.text());
  return Value();
}

Value FormatTime(Heap& heap, const Value& format, absl::CivilSecond now) {
  if (!format.is_string()) {
    return heap.Fail("strftime_now needs a string");
  }
  struct tm time = {};
  time.tm_year = static_cast<int>(now.year()) - 1900;
  time.tm_mon = now.month() - 1;
  time.tm_mday = now.day();
  time.tm_hour = now.hour();
  time.tm_min = now.minute();
  time.tm_sec = now.second();
  time.tm_wday = (static_cast<int>(absl::GetWeekday(now)) + 1) % 7;  // abseil's Monday is 0
  time.tm_yday = absl::GetYearDay(now) - 1;
  TextBuilder builder(heap);
  builder.set_marks_all(format.as<String>().has_client_text());
  const std::string_view text = format.text();
  for (size_t i = 0; i < text.size() && heap.budget().Spend(); ++i) {
    if (text[i] != '%') {
      builder.AppendOwn(text.substr(i, 1));
      continue;
    }
    const size_t letter = i + (text.substr(i + 1).starts_with('-') ? 2 : 1);
    constexpr std::string_view kLetters = "aAbBcdeDFHIjmMpSTuwxXyY%";
    if (letter >= text.size() || kLetters.find(text[letter]) == std::string_view::npos) {
      return heap.Fail("strftime_now: this directive is not supported");
    }
    std::array<char, 64> buffer = {};
    const std::string directive(text.substr(i, letter + 1 - i));
    builder.AppendOwn(
        {buffer.data(), ::strftime(buffer.data(), buffer.size(), directive.c_str(), &time)});
    i = letter;
  }
  return builder.TakeValue();
}

}  // namespace

std::optional<Value> FindGlobal(Heap& heap, std::string_view name, absl::CivilSecond now) {
  const auto function = [&heap](std::string_view called, Value (*run)(Heap&, Arguments&)) {
    return heap.New<Function>(Kind::kFunction, std::string(called), 0, [&heap, run](Arguments& a) {
      return run(heap, a);
    });
  };
  if (name == "range") {
    return function(name, MakeRange);
  }
  if (name == "dict") {
    return function(name, MakeDict);
  }
  if (name == "namespace") {
    return function(name, MakeNamespace);
  }
  if (name == "raise_exception") {
    return function(name, RaiseException);
  }
  if (name == "strftime_now") {
    return heap.New<Function>(Kind::kFunction, std::string(name), 0, [&heap, now](Arguments& a) {
      return a.positional.size() == 1 && a.named.empty()
                 ? FormatTime(heap, a.positional[0], now)
                 : heap.Fail("strftime_now takes one format");
    });
  }
  if (name == "lipsum" || name == "cycler" || name == "joiner") {
    return function(name, [](Heap& own_heap, Arguments&) {
      return own_heap.Fail("this function is not supported");
    });
  }
  return std::nullopt;
}

}  // namespace quire
