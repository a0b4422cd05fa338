#include "deploy/cli/flag_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "common/base/status_macros.h"
#include "common/json/json.h"

namespace quire {
namespace {

absl::Status BadValue(const std::string& name, const char* kind) {
  return absl::InvalidArgumentError(absl::StrCat("--", name, " needs ", kind));
}

template <typename Number, typename Parse>
auto NumberSetter(const std::string& name,
                  std::function<void(Number)> set,
                  Parse parse,
                  const char* kind) {
  return [name, set = std::move(set), parse, kind](const std::string& text) -> absl::Status {
    Number number = 0;
    if (!parse(text, &number)) {
      return BadValue(name, kind);
    }
    set(number);
    return absl::OkStatus();
  };
}

// Compares the outputs of two error handlers of the JSON writer, which differ only for bytes that
// are not UTF-8.
bool IsUtf8(const std::string& text) {
  const Json json(text);
  return json.dump(-1, ' ', false, Json::error_handler_t::ignore) ==
         json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void FlagTable::Text(const std::string& name, std::function<void(const std::string&)> set) {
  values_[name] = [set = std::move(set)](const std::string& text) {
    set(text);
    return absl::OkStatus();
  };
}

void FlagTable::Utf8Text(const std::string& name, std::function<void(const std::string&)> set) {
  values_[name] = [name, set = std::move(set)](const std::string& text) {
    if (!IsUtf8(text)) {
      return BadValue(name, "text in UTF-8");
    }
    set(text);
    return absl::OkStatus();
  };
}

void FlagTable::Int32(const std::string& name, std::function<void(int32_t)> set) {
  values_[name] = NumberSetter<int32_t>(
      name,
      std::move(set),
      [](const std::string& t, int32_t* n) { return absl::SimpleAtoi(t, n); },
      "a 32-bit integer");
}

void FlagTable::Int64(const std::string& name, std::function<void(int64_t)> set) {
  values_[name] = NumberSetter<int64_t>(
      name,
      std::move(set),
      [](const std::string& t, int64_t* n) { return absl::SimpleAtoi(t, n); },
      "a whole number");
}

void FlagTable::Uint64(const std::string& name, std::function<void(uint64_t)> set) {
  values_[name] = NumberSetter<uint64_t>(
      name,
      std::move(set),
      [](const std::string& t, uint64_t* n) { return absl::SimpleAtoi(t, n); },
      "a whole number, not negative");
}

void FlagTable::Float(const std::string& name, std::function<void(float)> set) {
  values_[name] = NumberSetter<float>(
      name,
      std::move(set),
      [](const std::string& t, float* n) { return absl::SimpleAtof(t, n) && std::isfinite(*n); },
      "a finite number");
}

void FlagTable::Double(const std::string& name, std::function<void(double)> set) {
  values_[name] = NumberSetter<double>(
      name,
      std::move(set),
      [](const std::string& t, double* n) { return absl::SimpleAtod(t, n) && std::isfinite(*n); },
      "a finite number");
}

void FlagTable::DoubleOrInf(const std::string& name, std::function<void(double)> set) {
  values_[name] = NumberSetter<double>(
      name,
      std::move(set),
      [](const std::string& t, double* n) { return absl::SimpleAtod(t, n) && !std::isnan(*n); },
      "a number or inf");
}

void FlagTable::Int32List(const std::string& name, std::function<void(int32_t)> add) {
  values_[name] = [name, add = std::move(add)](const std::string& text) -> absl::Status {
    for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
      int32_t number = 0;
      if (!absl::SimpleAtoi(part, &number)) {
        return BadValue(name, "whole numbers separated by commas");
      }
      add(number);
    }
    return absl::OkStatus();
  };
}

void FlagTable::Switch(const std::string& name, std::function<void()> set) {
  switches_[name] = std::move(set);
}

absl::Status FlagTable::Parse(const std::vector<std::string>& args) const {
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].starts_with("--")) {
      return absl::InvalidArgumentError(absl::StrCat("not a flag: ", args[i]));
    }
    const size_t equals = args[i].find('=');
    const bool has_value = equals != std::string::npos;
    std::string name = args[i].substr(2, has_value ? equals - 2 : equals);
    std::replace(name.begin(), name.end(), '_', '-');
    auto on = switches_.find(name);
    if (on != switches_.end() && !has_value) {
      on->second();
      continue;
    }
    auto flag = values_.find(name);
    if (flag == values_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name));
    }
    if (!has_value && i + 1 == args.size()) {
      return BadValue(name, "a value");
    }
    QUIRE_RETURN_IF_ERROR(flag->second(has_value ? args[i].substr(equals + 1) : args[++i]));
  }
  return absl::OkStatus();
}

}  // namespace quire
