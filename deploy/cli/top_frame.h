// The output of `quire top`: a frame for a terminal, made from a server's answers, or one line for
// a program. Even if the server sends hostile bytes, a frame contains only printable ASCII, our own
// glyphs and our own colors, and no line is wider than the terminal.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_DEPLOY_CLI_TOP_FRAME_H_
#define QUIRE_DEPLOY_CLI_TOP_FRAME_H_

#include <string>
#include <string_view>

#include "deploy/cli/top_history.h"

namespace quire {

struct FrameStyle {
  int width = 80;          // columns; a smaller value is raised to kMinFrameWidth
  int height = 0;          // lines; 0: no bound
  bool has_color = false;  // ANSI escape sequences
  bool has_unicode = false;
};

inline constexpr int kMinFrameWidth = 24;

// Returns lines, each with its line end. trouble: why the server gave no new answer; empty if it
// gave one.
std::string TopFrame(const TopHistory& history,
                     std::string_view server,
                     std::string_view trouble,
                     const FrameStyle& wanted);

// Returns key=value pairs and a line end. REQUIRES: history has an answer.
std::string TopLine(const TopHistory& history);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_TOP_FRAME_H_
