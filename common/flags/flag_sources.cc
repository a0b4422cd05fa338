#include "common/flags/flag_sources.h"

#include <cstdint>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/flag_check.h"

namespace quire {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;

bool IsSource(absl::string_view name) {
  return name == "flagfile" || name == "fromenv" || name == "tryfromenv";
}

// Returns the name in "--name=value", "--name value" or "--name".
absl::string_view NameIn(absl::string_view argument) {
  argument.remove_prefix(absl::StartsWith(argument, "--") ? 2 : 1);
  return argument.substr(0, argument.find_first_of("= \t"));
}

// Turns "--name value" into "--name=value", because ExpandFlagSources returns one argument per
// flag.
std::string OneArgument(absl::string_view line) {
  const size_t end = line.find_first_of("= \t");
  if (end == absl::string_view::npos || line[end] == '=') {
    return std::string(line);
  }
  return absl::StrCat(
      line.substr(0, end), "=", absl::StripLeadingAsciiWhitespace(line.substr(end)));
}

absl::Status AppendFile(const std::string& path, std::vector<std::string>* args) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxFileBytes);
  if (!text.ok()) {
    return FlagError("flagfile", ToStd(text.status().message()));
  }
  int number = 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') {
      continue;
    }
    const bool is_flag = line.size() > 1 && line.front() == '-' && line != "--";
    if (!is_flag || absl::StrContains(line, '\0')) {
      return FlagError("flagfile", absl::StrCat(path, ":", number, ": not a flag"));
    }
    if (IsSource(NameIn(line))) {
      return FlagError(
          "flagfile",
          absl::StrCat(path,
                       ":",
                       number,
                       ": a flag file must not contain --flagfile, --fromenv or --tryfromenv"));
    }
    args->push_back(OneArgument(line));
  }
  return absl::OkStatus();
}

absl::Status AppendVariables(absl::string_view source,
                             absl::string_view names,
                             std::vector<std::string>* args) {
  for (absl::string_view name : absl::StrSplit(names, ',', absl::SkipWhitespace())) {
    const std::string variable = absl::StrCat("FLAGS_", absl::StrReplaceAll(name, {{"-", "_"}}));
    const char* const value = std::getenv(variable.c_str());  // NOLINT(concurrency-mt-unsafe)
    if (value != nullptr) {
      args->push_back(absl::StrCat("--", name, "=", value));
    } else if (source == "fromenv") {
      return FlagError("fromenv", absl::StrCat(variable, " is not in the environment"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandFlagSources(const std::vector<std::string>& args) {
  std::vector<std::string> expanded;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      expanded.insert(expanded.end(), args.begin() + static_cast<std::ptrdiff_t>(i), args.end());
      break;
    }
    const absl::string_view name =
        absl::StartsWith(args[i], "-") ? NameIn(args[i]) : absl::string_view();
    if (!IsSource(name)) {
      expanded.push_back(args[i]);
      continue;
    }
    const std::string source(name);
    const size_t equals = args[i].find('=');
    if (equals == std::string::npos && i + 1 == args.size()) {
      return FlagError(source, "needs a value");
    }
    const std::string value = equals == std::string::npos ? args[++i] : args[i].substr(equals + 1);
    QUIRE_RETURN_IF_ERROR(source == "flagfile" ? AppendFile(value, &expanded)
                                               : AppendVariables(source, value, &expanded));
  }
  return expanded;
}

std::string_view FlagSourcesHelp() {
  return "  --flagfile\n"
         "      File with one flag per line (--name=value). The flags of the file "
         "replace this one. A line that begins with # is a comment.\n"
         "  --fromenv\n"
         "      Names of flags, separated by commas. Flag --x gets the value of the "
         "environment variable FLAGS_x.\n"
         "  --tryfromenv\n"
         "      Like --fromenv, except that a flag without a variable keeps its value.\n";
}

}  // namespace quire
