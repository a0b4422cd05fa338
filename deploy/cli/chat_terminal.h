// ChatTerminal reads a person's lines from standard input, and writes answers to standard output.
// On a terminal Ctrl-C ends the answer or, at the prompt, the input. Without a terminal Ctrl-C ends
// the program, as usual.
//
// A line may have up to 1 MiB. On a terminal a LineEditor reads it, because the kernel cuts long
// lines.
//
// Thread safety: as TerminalMode. Make the object before other threads start, so that they inherit
// its blocked SIGINT.
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

  // Reads the next line, without its end (LF or CRLF). Shows a prompt first if interactive. Errors:
  // kOutOfRange at the end of input; kCancelled for Ctrl-C; kInvalidArgument for a line above 1
  // MiB; kUnavailable if standard input cannot be read. If interactive, the next line can be read
  // after kInvalidArgument.
  absl::StatusOr<std::string> ReadLine();
  // Reads the rest of the input. Errors: kCancelled; kInvalidArgument above 1 MiB; kUnavailable.
  absl::StatusOr<std::string> ReadAll();

  // Runs `act`. If interactive, a Ctrl-C meanwhile calls `on_interrupt` on another thread. Keys
  // typed meanwhile are kept for the next ReadLine, but a Ctrl-C drops the keys before it.
  void RunInterruptibly(const std::function<void()>& act,
                        const std::function<void()>& on_interrupt);

  // Writes a part of an answer; EndAnswer completes the answer. On a terminal control characters
  // are escaped.
  void WriteAnswer(std::string_view text);
  void EndAnswer();
  // Writes a line for the user if interactive, else nothing. The line is dim on a terminal with
  // colors.
  void WriteNote(const std::string& line);

 private:
  // Takes all pending Ctrl-C signals. If there were any, drops unread_ and returns true.
  bool TakeInterrupts();
  // Reads standard input into unread_. Returns false at the end of input. Errors: kUnavailable.
  absl::StatusOr<bool> ReadSome();
  // Runs on a thread that RunInterruptibly starts, until the descriptor `end` is readable.
  void Watch(int end, const std::function<void()>& on_interrupt);
  // Waits for input, and appends it to unread_. Returns false at the end of input. Errors:
  // kCancelled for Ctrl-C; kUnavailable.
  absl::StatusOr<bool> ReadMore();
  absl::StatusOr<std::string> EditLine();       // ReadLine if interactive
  absl::StatusOr<std::string> ReadPlainLine();  // ReadLine if not interactive

  const bool is_interactive_;
  const bool is_output_terminal_;
  const int screen_;  // the descriptor of a terminal if interactive
  sigset_t old_signals_ = {};
  FileDescriptor interrupts_;         // readable after Ctrl-C; closed unless interactive
  std::optional<TerminalMode> mode_;  // set if interactive
  LineEditor editor_;
  std::string unread_;  // during RunInterruptibly only Watch uses it
  TerminalText escaper_;
  bool is_at_line_start_ = true;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_CHAT_TERMINAL_H_
