#include "deploy/cli/terminal_mode.h"

#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

namespace quire {
namespace {

// Global, because a signal handler can reach only global state. Set before handlers are installed.
TerminalModeOptions mode;
termios saved_input;
bool has_saved_input = false;

// Signal handlers call Enter and Leave, so these two call only async-signal-safe functions.
void Enter() {
  if (has_saved_input) {
    termios input = saved_input;
    input.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    // Without NOFLSH, Ctrl-C makes the kernel drop input and output. A read could then block
    // although poll has reported input, and a prompt could be lost.
    input.c_lflag |= NOFLSH;
    input.c_iflag &= ~static_cast<tcflag_t>(ICRNL);
    input.c_cc[VMIN] = 1;
    input.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &input);
  }
  WriteToTerminal(mode.screen, mode.enter);
}

void Leave() {
  WriteToTerminal(mode.screen, mode.leave);
  if (has_saved_input) {
    ::tcsetattr(STDIN_FILENO, TCSANOW, &saved_input);
  }
}

void OnEnd(int signal) {
  Leave();
  if (mode.ends_well) {
    ::_exit(0);
  }
  // The signal is blocked while the handler runs. It kills the program when the handler returns.
  ::signal(signal, SIG_DFL);
  ::kill(::getpid(), signal);
}

void OnStop(int /*signal*/) {
  const int error = errno;  // of the code that the signal interrupted
  Leave();
  ::kill(::getpid(), SIGSTOP);
  // SIGSTOP has stopped the process, and SIGCONT has resumed it.
  Enter();
  errno = error;
}

void SetHandler(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigfillset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

void SetHandlers(void (*on_end)(int), void (*on_stop)(int)) {
  for (const int signal : mode.ended_by) {
    SetHandler(signal, on_end);
  }
  SetHandler(SIGTSTP, on_stop);
}

}  // namespace

void WriteToTerminal(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(std::max<ssize_t>(0, written)));
  }
}

TerminalMode::TerminalMode(const TerminalModeOptions& options) {
  mode = options;
  has_saved_input = ::tcgetattr(STDIN_FILENO, &saved_input) == 0;
  SetHandlers(OnEnd, OnStop);
  Enter();
}

TerminalMode::~TerminalMode() {
  Leave();
  SetHandlers(SIG_DFL, SIG_DFL);
}

bool TerminalMode::has_input() const { return has_saved_input; }

}  // namespace quire
