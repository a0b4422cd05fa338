// Tells which sanitizer this build has. Tests that plant a bug expect the right sanitizer to find
// it, and no test measures time under a sanitizer.
#ifndef QUIRE_TESTS_SUPPORT_SANITIZER_H_
#define QUIRE_TESTS_SUPPORT_SANITIZER_H_

#ifndef __has_feature  // clang defines it; older gcc does not
#define __has_feature(feature) 0
#endif

namespace quire {

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
inline constexpr bool kUnderAsan = true;
#else
inline constexpr bool kUnderAsan = false;
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
inline constexpr bool kUnderTsan = true;
#else
inline constexpr bool kUnderTsan = false;
#endif

inline constexpr bool kUnderSanitizer = kUnderAsan || kUnderTsan;

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_SANITIZER_H_
