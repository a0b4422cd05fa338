#include "tests/support/crash_note.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>

namespace quire {
namespace {

// Plain memory, because a signal handler must not use std::string.
char note_text[257];
std::size_t note_size = 0;

void PrintNote(int signal_number) {
  std::signal(signal_number, SIG_DFL);
  if (write(STDERR_FILENO, note_text, note_size) < 0) {
    _exit(1);
  }
  std::raise(signal_number);
}

}  // namespace

void SetCrashNote(const std::string& note) {
  note_size = 0;
  const std::size_t num_kept = std::min(note.size(), sizeof note_text - 2);
  std::copy_n(note.begin(), num_kept, note_text);
  note_text[num_kept] = '\n';
  note_size = note.empty() ? 0 : num_kept + 1;
  for (int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM}) {
    std::signal(signal_number, PrintNote);
  }
}

}  // namespace quire
