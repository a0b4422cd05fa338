#include "common/flags/command_line.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "common/base/error.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/flag_check.h"
#include "common/flags/flag_sources.h"

namespace quire {
namespace {

std::string WithUnderscores(std::string_view name) {
  return absl::StrReplaceAll(ToAbsl(name), {{"-", "_"}});
}

std::string WithDashes(absl::string_view name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

absl::CommandLineFlag* FindBool(absl::string_view name) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  return flag != nullptr && flag->IsOfType<bool>() ? flag : nullptr;
}

// Returns the boolean flag x if the name is no_x or nox, else null.
absl::CommandLineFlag* FindNegated(const std::string& name) {
  if (!absl::StartsWith(name, "no")) {
    return nullptr;
  }
  absl::CommandLineFlag* flag = FindBool(absl::string_view(name).substr(2));
  if (flag == nullptr && absl::StartsWith(name, "no_")) {
    flag = FindBool(absl::string_view(name).substr(3));
  }
  return flag;
}

// Returns the least number of single-character edits that turn a into b.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// Returns the error "unknown flag". Suggests the most similar flag name if it is close to `typed`.
absl::Status UnknownFlag(std::string_view typed) {
  std::string name = WithUnderscores(typed);
  std::string nearest;
  size_t nearest_distance = std::min<size_t>(4, name.size() / 2 + 1);
  for (const auto& [candidate, flag] : absl::GetAllFlags()) {
    size_t distance = EditDistance(name, ToStd(candidate));
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = WithDashes(candidate);
    }
  }
  return FlagError(typed,
                   nearest.empty() ? std::string("unknown flag")
                                   : absl::StrCat("unknown flag (did you mean --", nearest, "?)"));
}

// Says which values the flag's type allows, for error messages.
const char* KindOf(const absl::CommandLineFlag& flag) {
  return flag.IsOfType<bool>()                               ? "true or false"
         : flag.IsOfType<int32_t>()                          ? "a 32-bit integer"
         : flag.IsOfType<int64_t>()                          ? "a 64-bit integer"
         : flag.IsOfType<double>() || flag.IsOfType<float>() ? "a number"
                                                             : "a string";
}

class ArgumentParser {
 public:
  explicit ArgumentParser(std::span<const std::string> arguments) : arguments_(arguments) {}

  absl::StatusOr<CommandLine> Parse() {
    while (next_ < arguments_.size()) {
      std::string_view argument = arguments_[next_++];
      if (argument == "--") {
        break;
      }
      if (argument.size() < 2 || argument.front() != '-') {
        result_.positional.emplace_back(argument);
        continue;
      }
      argument.remove_prefix(argument.starts_with("--") ? 2 : 1);
      QUIRE_RETURN_IF_ERROR(ParseFlag(argument));
    }
    result_.positional.insert(
        result_.positional.end(), arguments_.begin() + Offset(next_), arguments_.end());
    return std::move(result_);
  }

 private:
  static std::ptrdiff_t Offset(size_t index) { return static_cast<std::ptrdiff_t>(index); }

  // text: the argument without its leading dashes.
  absl::Status ParseFlag(std::string_view text) {
    size_t equals = text.find('=');
    std::string_view typed = text.substr(0, equals);
    std::optional<std::string_view> value;
    if (equals != std::string_view::npos) {
      value = text.substr(equals + 1);
    }
    if (typed == "help" || typed == "version") {
      (typed == "help" ? result_.help : result_.version) = true;
      return absl::OkStatus();
    }
    std::string name = WithUnderscores(typed);
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr) {
      return SwitchOff(typed, FindNegated(name), value.has_value());
    }
    if (!value.has_value()) {
      QUIRE_ASSIGN_OR_RETURN(value, ImpliedValue(typed, *flag));
    }
    std::string error;
    if (!flag->ParseFrom(ToAbsl(*value), &error)) {
      return FlagError(typed,
                       absl::StrCat("must be ", KindOf(*flag), " (got '", ToAbsl(*value), "')"));
    }
    return absl::OkStatus();
  }

  static absl::Status SwitchOff(std::string_view typed,
                                absl::CommandLineFlag* flag,
                                bool has_value) {
    if (flag == nullptr) {
      return UnknownFlag(typed);
    }
    if (has_value) {
      return FlagError(typed, "takes no value");
    }
    std::string error;
    flag->ParseFrom("false", &error);
    return absl::OkStatus();
  }

  // Returns the value of a flag written without "=": "true" for a boolean, else the next argument.
  absl::StatusOr<std::string_view> ImpliedValue(std::string_view typed,
                                                const absl::CommandLineFlag& flag) {
    if (flag.IsOfType<bool>()) {
      return "true";
    }
    if (next_ == arguments_.size() || BeginsLikeFlag(arguments_[next_])) {
      return FlagError(typed, "needs a value");
    }
    return arguments_[next_++];
  }

  std::span<const std::string> arguments_;
  size_t next_ = 0;
  CommandLine result_;
};

// Returns a flag's lines in the help: "--block-size (default 16)", then the flag's description.
std::string HelpOf(const absl::CommandLineFlag& flag) {
  std::string name = WithDashes(flag.Name());
  bool on = flag.IsOfType<bool>() && flag.DefaultValue() == "true";
  std::string text = absl::StrCat("  --", on ? "[no-]" : "", name);
  std::string fallback = flag.DefaultValue();
  if (!fallback.empty() && !flag.IsOfType<bool>()) {
    absl::StrAppend(&text, " (default ", fallback, ")");
  } else if (on) {
    absl::StrAppend(&text, " (default on)");
  }
  return absl::StrCat(
      text, "\n      ", absl::StrReplaceAll(flag.Help(), {{"\n", "\n      "}}), "\n");
}

}  // namespace

std::string_view Version() { return QUIRE_VERSION; }

absl::StatusOr<CommandLine> ParseArguments(std::span<const char* const> arguments) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string> expanded,
                         ExpandFlagSources({arguments.begin(), arguments.end()}));
  return ArgumentParser(expanded).Parse();
}

std::string HelpText(const ProgramInfo& program) {
  std::map<std::string, std::string> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    flags[std::string(name)] = HelpOf(*flag);
  }
  std::string text = absl::StrCat(
      "usage: ", program.name, " ", program.usage, "\n", program.summary, "\n\nflags:\n");
  for (const auto& [name, help] : flags) {
    text += help;
  }
  return absl::StrCat(
      text,
      ToAbsl(FlagSourcesHelp()),
      "  --help\n      Print this and exit.\n  --version\n      Print the version and exit.\n");
}

std::vector<std::string> ParseCommandLineOrExit(int argc, char** argv, const ProgramInfo& program) {
  std::span<const char* const> arguments(argv, static_cast<size_t>(argc));
  auto parsed = ParseArguments(arguments.empty() ? arguments : arguments.subspan(1));
  if (!parsed.ok()) {
    std::fprintf(stderr,
                 "%s: %s (see %s --help)\n",
                 program.name.c_str(),
                 OneLine(ToStd(parsed.status().message())).c_str(),
                 program.name.c_str());
    std::exit(kExitUsage);  // NOLINT(concurrency-mt-unsafe)
  }
  if (parsed->help) {
    std::fputs(HelpText(program).c_str(), stdout);
    std::exit(EXIT_SUCCESS);  // NOLINT(concurrency-mt-unsafe)
  }
  if (parsed->version) {
    std::printf("%s %s\n", program.name.c_str(), std::string(Version()).c_str());
    std::exit(EXIT_SUCCESS);  // NOLINT(concurrency-mt-unsafe)
  }
  return std::move(parsed->positional);
}

}  // namespace quire
