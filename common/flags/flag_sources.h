// Flags that stand in a file or in the environment, under the names that abseil has for them:
//
//   --flagfile=FILE         the lines of FILE, in place of this flag. A line is a flag,
//   --name=value,
//                           --name value or --name; blank lines and those that begin with # are
//                           none
//   --fromenv=NAME,NAME     --NAME with what FLAGS_NAME in the environment says; it must be there
//   --tryfromenv=NAME,NAME  the same, where it is there
//
// A flag that comes later wins. "--" ends the flags.
//
// Thread safety: call from main, before other threads start: it reads the environment.
#ifndef QUIRE_COMMON_FLAGS_FLAG_SOURCES_H_
#define QUIRE_COMMON_FLAGS_FLAG_SOURCES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

// The arguments, with those three flags replaced by what they stand for: one argument a flag.
// Errors: kInvalidArgument, reason FLAG, naming the file and the line, never their text; a file may
//         be of 1 MiB and names no other file.
absl::StatusOr<std::vector<std::string>> ExpandFlagSources(const std::vector<std::string>& args);

// Their part of --help.
std::string_view FlagSourcesHelp();

}  // namespace quire

#endif  // QUIRE_COMMON_FLAGS_FLAG_SOURCES_H_
