// Exit codes of all programs, besides 0 and 1. worker/README.md says when a worker ends with each
// of these codes.
//
// Thread-safe: constants.
#ifndef QUIRE_COMMON_BASE_EXIT_CODES_H_
#define QUIRE_COMMON_BASE_EXIT_CODES_H_

namespace quire {

inline constexpr int kExitUsage = 2;   // a mistake on the command line
inline constexpr int kExitModel = 3;   // model files that cannot be served
inline constexpr int kExitMemory = 4;  // too little memory for the model or the requested pools
inline constexpr int kExitDevice = 5;  // a device failed
inline constexpr int kExitStuck = 70;  // a thread hangs while other threads wait for it

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_EXIT_CODES_H_
