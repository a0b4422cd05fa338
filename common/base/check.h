// QUIRE_CHECK stops the process if the program itself is wrong: a broken invariant, a double free,
// an unknown id inside the core. Data from the wire, files or flags must never make a check fail.
// QUIRE_DCHECK is the same for hot loops, and is compiled out if NDEBUG is defined.
//
// Thread safety: safe from any thread.
#ifndef QUIRE_COMMON_BASE_CHECK_H_
#define QUIRE_COMMON_BASE_CHECK_H_

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace quire {

// Prints "file:line: check failed: expression" on standard error and aborts.
[[noreturn]] inline void CheckFailed(const char* file, int line, const char* expression) {
  constexpr unsigned kMaxSeconds = 2;
  // Without the alarm, output to a blocked terminal could keep the process alive.
  ::alarm(kMaxSeconds);
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, expression);
  std::fflush(stderr);
  std::abort();
}

}  // namespace quire

#define QUIRE_CHECK(condition)                       \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::quire::CheckFailed(__FILE__, __LINE__, #condition))
#define QUIRE_CHECK_EQ(a, b) QUIRE_CHECK((a) == (b))
#define QUIRE_CHECK_NE(a, b) QUIRE_CHECK((a) != (b))
#define QUIRE_CHECK_LT(a, b) QUIRE_CHECK((a) < (b))
#define QUIRE_CHECK_LE(a, b) QUIRE_CHECK((a) <= (b))
#define QUIRE_CHECK_GT(a, b) QUIRE_CHECK((a) > (b))
#define QUIRE_CHECK_GE(a, b) QUIRE_CHECK((a) >= (b))

#ifdef NDEBUG
#define QUIRE_DCHECK(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#else
#define QUIRE_DCHECK(condition) QUIRE_CHECK(condition)
#endif

#endif  // QUIRE_COMMON_BASE_CHECK_H_
