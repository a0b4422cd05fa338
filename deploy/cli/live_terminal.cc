#include "deploy/cli/live_terminal.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"

#include <sys/ioctl.h>

namespace quire {
namespace {

// Switches to the alternate screen, hides the cursor, stops line wrapping and clears the screen.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
constexpr std::string_view kLeave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr absl::Duration kSizePoll = absl::Milliseconds(100);
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

}  // namespace

LiveTerminal::LiveTerminal()
    : mode_({.screen = STDOUT_FILENO,
             .enter = kEnter,
             .leave = kLeave,
             .ended_by = kSignals,
             .ends_well = true}) {}

TerminalSize CurrentTerminalSize() {
  winsize size = {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    return {};
  }
  return {.columns = size.ws_col, .lines = size.ws_row};
}

void LiveTerminal::Draw(const std::string& frame) const {
  // Clears the rest of each line after its text, and the screen below the last line. Drops the line
  // end of the last line, because that line end would scroll the screen.
  std::string_view lines = frame;
  if (!lines.empty() && lines.back() == '\n') {
    lines.remove_suffix(1);
  }
  WriteToTerminal(STDOUT_FILENO,
                  "\x1b[H" +
                      absl::StrReplaceAll({lines.data(), lines.size()}, {{"\n", "\x1b[K\r\n"}}) +
                      "\x1b[K\x1b[J");
}

char LiveTerminal::WaitForKey(absl::Duration timeout) const {
  const absl::Time deadline = absl::Now() + timeout;
  const TerminalSize before = CurrentTerminalSize();
  bool reads_keys = mode_.has_input();
  while (absl::Now() < deadline && CurrentTerminalSize() == before) {
    const absl::Duration wait = std::min(kSizePoll, deadline - absl::Now());
    pollfd keys = {.fd = reads_keys ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
    ::poll(&keys, 1, static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
    char key = '\0';
    if (keys.revents != 0) {
      if (::read(STDIN_FILENO, &key, 1) == 1) {
        return key;
      }
      reads_keys = false;  // standard input was closed
    }
  }
  return '\0';
}

}  // namespace quire
