// The logging flags, the same for every server.
//
// Thread safety: call from main, before other threads start.
#ifndef QUIRE_COMMON_FLAGS_LOG_FLAGS_H_
#define QUIRE_COMMON_FLAGS_LOG_FLAGS_H_

#include <string_view>

namespace quire {

// Applies --log-format. If the flag's value is wrong, ends the process (kExitUsage) with one line
// that begins with the prefix.
void ApplyLogFlagsOrExit(std::string_view prefix);

}  // namespace quire

#endif  // QUIRE_COMMON_FLAGS_LOG_FLAGS_H_
