// LiveTerminal takes the terminal over for frames that replace each other - another screen, no
// cursor, no echo of keys - and gives it back as it was: at its end, when a signal ends the program
// (Ctrl-C), and while the program is stopped (Ctrl-Z). Only escape sequences that every terminal of
// the last decades has.
//
// Thread safety: one thread, and one of them at a time: what a signal needs is the program's.
#ifndef QUIRE_DEPLOY_CLI_LIVE_TERMINAL_H_
#define QUIRE_DEPLOY_CLI_LIVE_TERMINAL_H_

#include <string>

#include "absl/time/time.h"

namespace quire {

struct TerminalSize {
  int columns = 80;
  int lines = 24;

  friend bool operator==(const TerminalSize&, const TerminalSize&) = default;
};

// Of the terminal that standard output is; 80 x 24 where it is none.
TerminalSize CurrentTerminalSize();

class LiveTerminal {
 public:
  // Of standard input and output. SIGINT, SIGTERM and SIGHUP end the program with 0 from now on.
  LiveTerminal();
  ~LiveTerminal();
  LiveTerminal(const LiveTerminal&) = delete;
  LiveTerminal& operator=(const LiveTerminal&) = delete;

  // Lines, each with its end, in place of what was there.
  void Draw(const std::string& frame) const;

  // The key that was pressed meanwhile, or '\0' when the time has passed or the size has changed.
  char WaitForKey(absl::Duration timeout) const;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_LIVE_TERMINAL_H_
