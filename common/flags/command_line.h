// ParseCommandLineOrExit gives every program of Quire the same syntax for flags defined with
// ABSL_FLAG. Names may have dashes or underscores (--block-size, --block_size). Values are written
// --flag value or --flag=value, booleans --flag, --no-flag or --flag=true. "--" ends the flags;
// other arguments are positional. Flags may also come from a file or the environment
// (flag_sources.h).
//
// abseil's own parser is not used: it accepts no dashes in names, adds flags of its own to ours,
// and exits with a fixed code after a mistake.
//
// Thread safety: call from main, before other threads start.
#ifndef QUIRE_COMMON_FLAGS_COMMAND_LINE_H_
#define QUIRE_COMMON_FLAGS_COMMAND_LINE_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/exit_codes.h"

namespace quire {

// Returns the version of this build, for example "0.1.0".
std::string_view Version();

struct ProgramInfo {
  std::string name;     // for example "quire_worker"
  std::string usage;    // arguments for the usage line: "--model DIR [flags]"
  std::string summary;  // one sentence
};

struct CommandLine {
  std::vector<std::string> positional;
  bool help = false;     // --help was given
  bool version = false;  // --version was given
};

// Sets the flags named in arguments. Callers leave out the program's name, argv[0]. After an error,
// the flags before the faulty flag keep their new values.
// Errors: kInvalidArgument, reason FLAG, message "--flag: rule".
absl::StatusOr<CommandLine> ParseArguments(std::span<const char* const> arguments);

// Returns the text of --help: usage, summary, then every flag with its default.
std::string HelpText(const ProgramInfo& program);

// For main. Sets the flags and returns the positional arguments. With --help or --version, prints
// to standard output and exits with 0. After a mistake, prints one line to standard error and exits
// with kExitUsage.
std::vector<std::string> ParseCommandLineOrExit(int argc, char** argv, const ProgramInfo& program);

}  // namespace quire

#endif  // QUIRE_COMMON_FLAGS_COMMAND_LINE_H_
