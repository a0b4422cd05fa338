// What `quire top` shows: a frame for a terminal, made of what a server answered, or one line for a
// program. Whatever the server says, nothing but printable ASCII, our own glyphs and our own
// colours comes out, and no line is longer than the terminal is wide.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_DEPLOY_CLI_TOP_FRAME_H_
#define QUIRE_DEPLOY_CLI_TOP_FRAME_H_

#include <string>
#include <string_view>

#include "deploy/cli/top_history.h"

namespace quire {

struct FrameStyle {
  int width = 80;           // columns; fewer than kMinFrameWidth are taken for that
  int height = 0;           // lines; 0: as many as it takes
  bool has_colour = false;  // escape sequences of ANSI
  bool has_unicode = false;
};

inline constexpr int kMinFrameWidth = 24;

// Lines, each with its end. trouble: why the last answer is not of now; empty where it is.
std::string TopFrame(const TopHistory& history,
                     std::string_view server,
                     std::string_view trouble,
                     const FrameStyle& wanted);

// key=value pairs, with the end of the line. REQUIRES: there was an answer.
std::string TopLine(const TopHistory& history);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_TOP_FRAME_H_
