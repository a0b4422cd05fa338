#include "deploy/cli/chat_terminal.h"

#include <poll.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"

#include <sys/eventfd.h>
#include <sys/signalfd.h>

namespace quire {
namespace {

constexpr size_t kMaxInputBytes = size_t{1} << 20;
// Bounds the keys that are read during an answer. Further keys stay in the kernel's queue.
constexpr size_t kMaxTypeAheadBytes = 2 * kMaxInputBytes;
constexpr char kPrompt[] = ">>> ";
// Bracketed paste: the terminal marks where a paste begins and ends.
constexpr std::string_view kBeginPasteMarks = "\x1b[?2004h";
constexpr std::string_view kEndPasteMarks = "\x1b[?2004l";
constexpr int kEndingSignals[] = {SIGTERM, SIGHUP, SIGQUIT};
constexpr char kDim[] = "\x1b[2m";
constexpr char kPlain[] = "\x1b[0m";

absl::Status TooLong() {
  return absl::InvalidArgumentError(
      absl::StrCat("the message is too long (limit ", kMaxInputBytes, " bytes)"));
}

absl::Status EndOfInput() { return absl::OutOfRangeError("end of input"); }

// Returns false for terminals that would print escape sequences.
bool KnowsEscapes() {
  const char* term = ::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): one thread
  return term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

}  // namespace

ChatTerminal::ChatTerminal()
    : is_interactive_(::isatty(STDIN_FILENO) == 1),
      is_output_terminal_(::isatty(STDOUT_FILENO) == 1),
      screen_(is_output_terminal_            ? STDOUT_FILENO
              : ::isatty(STDERR_FILENO) == 1 ? STDERR_FILENO
                                             : STDIN_FILENO),
      editor_(kPrompt, kMaxInputBytes) {
  if (is_interactive_) {
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &signals, &old_signals_);
    interrupts_ = FileDescriptor(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    QUIRE_CHECK(interrupts_.is_open());
    const bool marks = KnowsEscapes();
    mode_.emplace(TerminalModeOptions{.screen = screen_,
                                      .enter = marks ? kBeginPasteMarks : "",
                                      .leave = marks ? kEndPasteMarks : "",
                                      .ended_by = kEndingSignals});
  }
}

ChatTerminal::~ChatTerminal() {
  // Restores the terminal first, because a pending SIGINT kills the program as soon as it is
  // unblocked.
  mode_.reset();
  if (is_interactive_) {
    ::pthread_sigmask(SIG_SETMASK, &old_signals_, nullptr);
  }
}

bool ChatTerminal::TakeInterrupts() {
  signalfd_siginfo signal = {};
  bool was_interrupted = false;
  while (::read(interrupts_.fd(), &signal, sizeof(signal)) > 0) {
    was_interrupted = true;
  }
  if (was_interrupted) {
    unread_.clear();
    ::tcflush(STDIN_FILENO, TCIFLUSH);
  }
  return was_interrupted;
}

absl::StatusOr<bool> ChatTerminal::ReadSome() {
  std::array<char, 4096> bytes;
  const ssize_t n = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (n < 0 && errno != EINTR && errno != EAGAIN) {
    return absl::UnavailableError("standard input cannot be read");
  }
  unread_.append(bytes.data(), n > 0 ? static_cast<size_t>(n) : 0);
  return n != 0;
}

absl::StatusOr<bool> ChatTerminal::ReadMore() {
  std::array<pollfd, 2> ready = {pollfd{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                                 pollfd{.fd = interrupts_.fd(), .events = POLLIN, .revents = 0}};
  ::poll(ready.data(), ready.size(), -1);
  if (ready[1].revents != 0 && TakeInterrupts()) {
    return absl::CancelledError("interrupted");
  }
  if (ready[0].revents == 0) {
    return true;  // another signal interrupted poll
  }
  return ReadSome();
}

absl::StatusOr<std::string> ChatTerminal::ReadLine() {
  if (is_interactive_) {
    // Drops a Ctrl-C before the prompt: it was meant for the answer that has just ended.
    TakeInterrupts();
    std::fputs(kPrompt, is_output_terminal_ ? stdout : stderr);
    std::fflush(nullptr);
  }
  return is_interactive_ ? EditLine() : ReadPlainLine();
}

absl::StatusOr<std::string> ChatTerminal::EditLine() {
  while (true) {
    std::string_view keys = unread_;
    const LineEditor::Event event = editor_.Put(&keys);
    unread_.erase(0, unread_.size() - keys.size());
    WriteToTerminal(screen_, editor_.TakeEcho());
    if (event == LineEditor::Event::kLine) {
      std::string line = editor_.TakeLine();
      if (line.size() > kMaxInputBytes) {
        return TooLong();
      }
      return line;
    }
    const bool is_end = event == LineEditor::Event::kEndOfInput;
    const absl::StatusOr<bool> has_more = is_end ? absl::StatusOr<bool>(false) : ReadMore();
    if (!has_more.ok() || !*has_more) {
      WriteToTerminal(screen_, "\n");
      return has_more.ok() ? EndOfInput() : has_more.status();
    }
  }
}

absl::StatusOr<std::string> ChatTerminal::ReadPlainLine() {
  bool has_more = true;
  size_t end = unread_.find('\n');
  while (end == std::string::npos && has_more) {
    if (unread_.size() > kMaxInputBytes) {
      return TooLong();
    }
    const size_t num_searched = unread_.size();
    QUIRE_ASSIGN_OR_RETURN(has_more, ReadMore());
    end = unread_.find('\n', num_searched);
  }
  if (end == std::string::npos && unread_.empty()) {
    return EndOfInput();
  }
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end == std::string::npos ? end : end + 1);
  if (line.ends_with('\r')) {
    line.pop_back();
  }
  return line;
}

absl::StatusOr<std::string> ChatTerminal::ReadAll() {
  std::string all;
  bool has_more = true;
  while (has_more) {
    if (is_interactive_) {
      const absl::StatusOr<std::string> line = EditLine();
      has_more = !absl::IsOutOfRange(line.status());
      QUIRE_RETURN_IF_ERROR(has_more ? line.status() : absl::OkStatus());
      all += has_more ? *line + "\n" : "";
    } else {
      QUIRE_ASSIGN_OR_RETURN(has_more, ReadMore());
      all += std::exchange(unread_, "");
    }
    if (all.size() > kMaxInputBytes) {
      return TooLong();
    }
  }
  return all;
}

void ChatTerminal::RunInterruptibly(const std::function<void()>& act,
                                    const std::function<void()>& on_interrupt) {
  if (!is_interactive_) {
    act();
    return;
  }
  const FileDescriptor end(::eventfd(0, EFD_CLOEXEC));
  QUIRE_CHECK(end.is_open());
  std::thread watcher([&] { Watch(end.fd(), on_interrupt); });
  act();
  const uint64_t one = 1;
  QUIRE_CHECK(::write(end.fd(), &one, sizeof(one)) == sizeof(one));
  watcher.join();
}

void ChatTerminal::Watch(int end, const std::function<void()>& on_interrupt) {
  std::array<pollfd, 3> ready = {pollfd{.fd = end, .events = POLLIN, .revents = 0},
                                 pollfd{.fd = interrupts_.fd(), .events = POLLIN, .revents = 0},
                                 pollfd{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}};
  while (ready[0].revents == 0) {
    if (::poll(ready.data(), ready.size(), -1) < 0) {
      continue;
    }
    if (TakeInterrupts()) {
      on_interrupt();
      continue;  // TakeInterrupts has dropped the input that poll reported
    }
    // Reads keys, because the kernel queues only a few thousand keys. A Ctrl-C behind a full queue
    // would not be seen.
    if (ready[2].revents != 0) {
      const absl::StatusOr<bool> has_more = ReadSome();
      if (!has_more.ok() || !*has_more || unread_.size() > kMaxTypeAheadBytes) {
        ready[2].fd = -1;  // not polled again; the next ReadLine reads on
      }
    }
  }
}

void ChatTerminal::WriteAnswer(std::string_view text) {
  const std::string escaped = is_output_terminal_ ? escaper_.Escape(text) : std::string(text);
  std::fwrite(escaped.data(), 1, escaped.size(), stdout);
  std::fflush(stdout);
  is_at_line_start_ = !text.empty() && text.back() == '\n';
}

void ChatTerminal::EndAnswer() {
  std::fputs(escaper_.End().c_str(), stdout);
  if (!is_at_line_start_) {
    std::fputc('\n', stdout);
  }
  std::fflush(stdout);
  is_at_line_start_ = true;
}

void ChatTerminal::WriteNote(const std::string& line) {
  if (!is_interactive_) {
    return;
  }
  const bool is_dim =
      is_output_terminal_ && ::getenv("NO_COLOR") == nullptr;  // NOLINT(concurrency-mt-unsafe)
  std::FILE* const out = is_output_terminal_ ? stdout : stderr;
  std::fprintf(out, "%s%s%s\n", is_dim ? kDim : "", OneLine(line).c_str(), is_dim ? kPlain : "");
  std::fflush(out);
}

}  // namespace quire
