// LiveTerminal takes over the terminal, to show frames one after the other: alternate screen, no
// cursor, no echo of keys. TerminalMode restores the terminal. LiveTerminal uses only escape
// sequences that terminals have had for decades.
//
// Thread safety: as TerminalMode.
#ifndef QUIRE_DEPLOY_CLI_LIVE_TERMINAL_H_
#define QUIRE_DEPLOY_CLI_LIVE_TERMINAL_H_

#include <string>

#include "absl/time/time.h"

#include "deploy/cli/terminal_mode.h"

namespace quire {

struct TerminalSize {
  int columns = 80;
  int lines = 24;

  friend bool operator==(const TerminalSize&, const TerminalSize&) = default;
};

// Returns the size of the terminal on standard output; 80 x 24 if standard output is no terminal.
TerminalSize CurrentTerminalSize();

class LiveTerminal {
 public:
  // Takes over standard input and output. SIGINT, SIGTERM and SIGHUP then end the program with exit
  // code 0.
  LiveTerminal();
  LiveTerminal(const LiveTerminal&) = delete;
  LiveTerminal& operator=(const LiveTerminal&) = delete;

  // Replaces the screen by `frame`: lines, each with its line end.
  void Draw(const std::string& frame) const;

  // Waits for a key and returns it, or '\0' if the timeout has passed or the terminal's size has
  // changed.
  char WaitForKey(absl::Duration timeout) const;

 private:
  TerminalMode mode_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_LIVE_TERMINAL_H_
