// Flags from a file or the environment, by abseil's names:
//
//   --flagfile=FILE         the lines of FILE, in place of this flag. A line is --name=value,
//                           --name value or --name; blank lines and lines that begin with # are
//                           skipped
//   --fromenv=NAME,NAME     --NAME with the value of the variable FLAGS_NAME, which must be set
//   --tryfromenv=NAME,NAME  the same, but variables that are not set are skipped
//
// If a flag is set twice, the later setting counts. "--" ends the flags.
//
// Thread safety: call from main, before other threads start: it reads the environment.
#ifndef QUIRE_COMMON_FLAGS_FLAG_SOURCES_H_
#define QUIRE_COMMON_FLAGS_FLAG_SOURCES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

// Returns the arguments with the three flags above expanded, one argument for each expanded flag. A
// file may hold at most 1 MiB and may name no other source.
// Errors: kInvalidArgument, reason FLAG; the message names the file and the line, never the text.
absl::StatusOr<std::vector<std::string>> ExpandFlagSources(const std::vector<std::string>& args);

// Returns the part of --help about the three flags above.
std::string_view FlagSourcesHelp();

}  // namespace quire

#endif  // QUIRE_COMMON_FLAGS_FLAG_SOURCES_H_
