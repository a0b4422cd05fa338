// A map of KV blocks as lines of text: a glyph for each cell, twice where there is room, and one
// for several where there is not.
//
// Thread safety: free functions and value types.
#ifndef QUIRE_DEPLOY_CLI_BLOCK_MAP_TEXT_H_
#define QUIRE_DEPLOY_CLI_BLOCK_MAP_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/v1/admin.pb.h"

namespace quire {

// Text of one colour.
struct ColouredText {
  std::string text;
  std::string colour;  // the numbers of an SGR sequence; empty: the terminal's own
};

// How cells look.
struct MapGlyphs {
  static constexpr int kNumShades = 4;
  const char* active[kNumShades];  // by the share of active blocks, the smallest first
  const char* shared;
  const char* leaving;
  const char* cached;
  const char* free;
};
const MapGlyphs& MapGlyphsOf(bool has_colour, bool has_unicode);

inline constexpr char kFreeColour[] = "38;5;242";
inline constexpr char kCachedColour[] = "38;5;247";
inline constexpr char kLeavingColour[] = "38;5;208";
// The same for the same holder, whenever and wherever.
std::string ColourOfHolder(uint64_t number);

// At most max_lines lines of at most `width` glyphs each. Columns that are too short are taken for
// 0s, and cells beyond those that a server may send for none. REQUIRES: width and max_lines are
// positive.
std::vector<std::vector<ColouredText>> BlockMapLines(const v1::BlockMap& map,
                                                     int width,
                                                     int max_lines,
                                                     const MapGlyphs& glyphs);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_BLOCK_MAP_TEXT_H_
