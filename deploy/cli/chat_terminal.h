// ChatTerminal reads a person's lines from standard input, and writes answers to standard output.
// On a terminal Ctrl-C ends an answer, or the input; without one it ends the program, as usual.
//
// Lines are edited by the terminal itself (cooked mode): backspace, Ctrl-U and Ctrl-W suffice for
// messages, and no library is needed. Such a line has at most 4,095 bytes; a longer message can
// come from a pipe.
//
// Thread safety: one thread; at most one object at a time, made before other threads, which must
//                not take SIGINT.
#ifndef QUIRE_DEPLOY_CLI_CHAT_TERMINAL_H_
#define QUIRE_DEPLOY_CLI_CHAT_TERMINAL_H_

#include <signal.h>

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "common/base/file_descriptor.h"
#include "common/base/terminal_text.h"

namespace quire {

class ChatTerminal {
 public:
  ChatTerminal();
  ~ChatTerminal();
  ChatTerminal(const ChatTerminal&) = delete;
  ChatTerminal& operator=(const ChatTerminal&) = delete;

  bool is_interactive() const { return is_interactive_; }

  // Reads the next line, without its end; if interactive, after a prompt. Errors: kOutOfRange at
  // the end of input, and for Ctrl-C; kInvalidArgument for a line beyond 1 MiB; kUnavailable if
  // standard input cannot be read.
  absl::StatusOr<std::string> ReadLine();
  // Reads all the rest. Errors: kInvalidArgument beyond 1 MiB; kUnavailable.
  absl::StatusOr<std::string> ReadAll();

  // Runs `act`. Meanwhile, if interactive, Ctrl-C calls `on_interrupt` on another thread.
  void RunInterruptibly(const std::function<void()>& act,
                        const std::function<void()>& on_interrupt);

  // Writes text of an answer, which EndAnswer completes. A terminal gets control characters
  // escaped.
  void WriteAnswer(std::string_view text);
  void EndAnswer();
  // Writes a line for the person: nothing unless interactive. Dim on a terminal with colors.
  void WriteNote(const std::string& line);

 private:
  // Appends what comes next to unread_. Returns false at the end of input and for Ctrl-C.
  absl::StatusOr<bool> ReadMore();

  const bool is_interactive_;
  const bool is_output_terminal_;
  sigset_t old_signals_ = {};
  FileDescriptor interrupts_;  // readable after Ctrl-C; closed unless interactive
  std::string unread_;
  TerminalText escaper_;
  bool is_at_line_start_ = true;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_CHAT_TERMINAL_H_
