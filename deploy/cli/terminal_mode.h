// TerminalMode gives each key of a terminal to the program at once, without the kernel's echo and
// line editing. Enter arrives as CR, not as LF: if the kernel turned CR into LF, a pasted CRLF
// would arrive as two line ends. Ctrl-C and Ctrl-Z still send signals. The destructor restores the
// terminal; so do signal handlers, before a signal ends or stops (Ctrl-Z) the program.
//
// Thread safety: one thread. At most one object at a time, because signal handlers use global
// state.
#ifndef QUIRE_DEPLOY_CLI_TERMINAL_MODE_H_
#define QUIRE_DEPLOY_CLI_TERMINAL_MODE_H_

#include <span>
#include <string_view>

namespace quire {

// Writes all bytes, or as many as the file takes. Async-signal-safe.
void WriteToTerminal(int fd, std::string_view bytes);

struct TerminalModeOptions {
  int screen = 1;                 // descriptor for `enter` and `leave`
  std::string_view enter;         // written when the mode begins; must outlive the TerminalMode
  std::string_view leave;         // written when the mode ends; must outlive the TerminalMode
  std::span<const int> ended_by;  // signals that end the program; must outlive the TerminalMode
  bool ends_well = false;         // true: such a signal causes exit code 0; false: it kills
};

class TerminalMode {
 public:
  explicit TerminalMode(const TerminalModeOptions& options);
  ~TerminalMode();
  TerminalMode(const TerminalMode&) = delete;
  TerminalMode& operator=(const TerminalMode&) = delete;

  // Returns true if standard input is a terminal. The mode then applies to it.
  bool has_input() const;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_TERMINAL_MODE_H_
