// ExpandFlagSources replaces each of the three flags below by flags from a file or the environment.
// The three have the same names and meanings as in abseil:
//
//   --flagfile=FILE         the lines of FILE, in place of this flag. A line is --name=value,
//                           --name value or --name; blank lines and lines that begin with # are
//                           skipped
//   --fromenv=NAME,NAME     --NAME with the value of the variable FLAGS_NAME, which must be set
//   --tryfromenv=NAME,NAME  the same, but variables that are not set are skipped
//
// If a flag is set twice, the later setting counts. "--" ends the flags.
//
// Thread safety: call from main, before other threads start, because the environment is read.
#ifndef QUIRE_COMMON_FLAGS_FLAG_SOURCES_H_
#define QUIRE_COMMON_FLAGS_FLAG_SOURCES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

// Returns the arguments, with each --flagfile, --fromenv and --tryfromenv replaced by the flags
// from its file or variables, one argument per flag. A file can have at most 1 MiB, and must not
// contain any of these three flags.
// Errors: kInvalidArgument, reason FLAG; the message has the file's name and the line's number, but
// no text of the line.
absl::StatusOr<std::vector<std::string>> ExpandFlagSources(const std::vector<std::string>& args);

// Returns the part of --help about --flagfile, --fromenv and --tryfromenv.
std::string_view FlagSourcesHelp();

}  // namespace quire

#endif  // QUIRE_COMMON_FLAGS_FLAG_SOURCES_H_
