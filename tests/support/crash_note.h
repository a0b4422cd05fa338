// A crash note tells how to repeat a run that a failed check aborts. Tests that run random
// histories set a new note before each history.
//
//   SetCrashNote("QUIRE_SEED=17")
//   a check fails: "file:line: check failed: ..." and then the note, on standard error.
//
// The process then dies of the signal, as it would without a note. Signals: SIGABRT, SIGSEGV,
// SIGBUS, SIGFPE, and SIGALRM, for tests that set an alarm against endless loops.
//
// Thread safety: one thread.
#ifndef QUIRE_TESTS_SUPPORT_CRASH_NOTE_H_
#define QUIRE_TESTS_SUPPORT_CRASH_NOTE_H_

#include <string>

namespace quire {

// Keeps at most 255 bytes. An empty note is not printed.
void SetCrashNote(const std::string& note);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_CRASH_NOTE_H_
