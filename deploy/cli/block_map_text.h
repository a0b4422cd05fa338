// Shows a map of KV blocks as lines of text. A cell of the map stands for one or more blocks. A
// cell is shown as one glyph, or as two if there is room. If there is not enough room, one glyph
// shows several cells.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_DEPLOY_CLI_BLOCK_MAP_TEXT_H_
#define QUIRE_DEPLOY_CLI_BLOCK_MAP_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/v1/admin.pb.h"

namespace quire {

// Text of one color.
struct ColoredText {
  std::string text;
  std::string color;  // numbers of an ANSI color sequence, "38;5;33"; empty: the default color
};

// The glyph that shows a cell, by the state of the cell's blocks.
struct MapGlyphs {
  static constexpr int kNumShades = 4;
  const char* active[kNumShades];  // by the active share of the cell's blocks, least first
  const char* shared;
  const char* leaving;
  const char* cached;
  const char* free;
};
const MapGlyphs& MapGlyphsOf(bool has_color, bool has_unicode);

inline constexpr char kFreeColor[] = "38;5;242";
inline constexpr char kCachedColor[] = "38;5;247";
inline constexpr char kLeavingColor[] = "38;5;208";
// Returns the color of a BlockHolder (a request or a pinned prefix) by its number. The color is the
// same in every frame.
std::string ColorOfHolder(uint64_t number);

// Returns at most max_lines lines of at most `width` glyphs each. If a field of `map` has too few
// values, the missing values count as 0. Cells after the first 4,096 are dropped. REQUIRES: width
// and max_lines are positive.
std::vector<std::vector<ColoredText>> BlockMapLines(const v1::BlockMap& map,
                                                    int width,
                                                    int max_lines,
                                                    const MapGlyphs& glyphs);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_BLOCK_MAP_TEXT_H_
