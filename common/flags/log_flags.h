// The flags of every server that say how it logs.
//
// Thread safety: call from main, before other threads start.
#ifndef QUIRE_COMMON_FLAGS_LOG_FLAGS_H_
#define QUIRE_COMMON_FLAGS_LOG_FLAGS_H_

#include <string_view>

namespace quire {

// --log-format holds from now on; or the end of the process (kExitUsage) with one line, which
// begins with the prefix.
void ApplyLogFlagsOrExit(std::string_view prefix);

}  // namespace quire

#endif  // QUIRE_COMMON_FLAGS_LOG_FLAGS_H_
