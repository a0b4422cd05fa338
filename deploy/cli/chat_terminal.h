// ChatTerminal reads a person's lines from standard input, and writes answers to standard output.
// On a terminal Ctrl-C ends an answer, or the input; without one it ends the program, as usual.
//
// On a terminal a LineEditor makes the lines, and a line may have 1 MiB, as without one.
//
// Thread safety: as TerminalMode; made before other threads, which must not take SIGINT.
#ifndef QUIRE_DEPLOY_CLI_CHAT_TERMINAL_H_
#define QUIRE_DEPLOY_CLI_CHAT_TERMINAL_H_

#include <signal.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "common/base/file_descriptor.h"
#include "common/base/terminal_text.h"
#include "deploy/cli/line_editor.h"
#include "deploy/cli/terminal_mode.h"

namespace quire {

class ChatTerminal {
 public:
  ChatTerminal();
  ~ChatTerminal();
  ChatTerminal(const ChatTerminal&) = delete;
  ChatTerminal& operator=(const ChatTerminal&) = delete;

  bool is_interactive() const { return is_interactive_; }

  // Reads the next line, without its end (LF or CRLF); if interactive, after a prompt. Errors:
  // kOutOfRange at the end of input; kCancelled for Ctrl-C; kInvalidArgument for a line beyond
  // 1 MiB, after which a terminal may be read on; kUnavailable if standard input cannot be read.
  absl::StatusOr<std::string> ReadLine();
  // Reads all the rest. Errors: kCancelled; kInvalidArgument beyond 1 MiB; kUnavailable.
  absl::StatusOr<std::string> ReadAll();

  // Runs `act`. Meanwhile, if interactive, Ctrl-C calls `on_interrupt` on another thread, and drops
  // what was typed before it and not yet read. The next ReadLine reads keys typed meanwhile.
  void RunInterruptibly(const std::function<void()>& act,
                        const std::function<void()>& on_interrupt);

  // Writes text of an answer, which EndAnswer completes. A terminal gets control characters
  // escaped.
  void WriteAnswer(std::string_view text);
  void EndAnswer();
  // Writes a line for the person: nothing unless interactive. Dim on a terminal with colors.
  void WriteNote(const std::string& line);

 private:
  // Takes pending Ctrl-C, and drops unread_ if there were any. Returns true if there were any.
  bool TakeInterrupts();
  // Reads standard input into unread_. Returns false at the end of input. Errors: kUnavailable.
  absl::StatusOr<bool> ReadSome();
  // The watcher of RunInterruptibly, until the descriptor `end` is readable.
  void Watch(int end, const std::function<void()>& on_interrupt);
  // Appends what comes next to unread_. Returns false at the end of input. Errors: kCancelled for
  // Ctrl-C; kUnavailable.
  absl::StatusOr<bool> ReadMore();
  // ReadLine of a terminal, and of anything else.
  absl::StatusOr<std::string> EditLine();
  absl::StatusOr<std::string> ReadPlainLine();

  const bool is_interactive_;
  const bool is_output_terminal_;
  const int screen_;  // the descriptor of a terminal if interactive
  sigset_t old_signals_ = {};
  FileDescriptor interrupts_;         // readable after Ctrl-C; closed unless interactive
  std::optional<TerminalMode> mode_;  // if interactive
  LineEditor editor_;
  std::string unread_;  // in RunInterruptibly of the watcher's thread
  TerminalText escaper_;
  bool is_at_line_start_ = true;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_CHAT_TERMINAL_H_
