#include "deploy/cli/block_map_text.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

// Upper bound on the cells of a map that are read from a server's answer; a server sends at most
// 1,024.
constexpr int kMaxCells = 4096;

// Colors that are light enough for dark terminals and dark enough for light ones. Neighbors in this
// list look different.
constexpr int kHolderColors[] = {33, 166, 71, 134, 37, 161, 136, 63, 107, 173, 31, 97};

constexpr MapGlyphs kPlainGlyphs = {
    .active = {"+", "+", "#", "#"}, .shared = "s", .leaving = "~", .cached = "c", .free = "."};
constexpr MapGlyphs kUnicodeGlyphs = {
    .active = {"░", "▒", "▓", "█"}, .shared = "▞", .leaving = "~", .cached = "c", .free = "·"};
// The color shows which blocks are cached and which are active, so both may use the same glyphs.
constexpr MapGlyphs kColoredGlyphs = {
    .active = {"░", "▒", "▓", "█"}, .shared = "▞", .leaving = "▒", .cached = "░", .free = "·"};

struct Cell {
  double num_blocks = 0;
  double num_cached = 0;
  double num_active = 0;
  double num_leaving = 0;
  double num_shared = 0;
  double most = 0;      // greatest num_active of the merged cells
  uint64_t holder = 0;  // number of the BlockHolder of the merged cell that has `most`
};

template <typename Column>
double ValueAt(const Column& column, int i) {
  return i < column.size() ? static_cast<double>(column.Get(i)) : 0.0;
}

// Merges the cells from first to end - 1 into one.
Cell CellsFrom(const v1::BlockMap& map, int first, int end) {
  Cell cell;
  for (int i = first; i < end; ++i) {
    const double num_active = ValueAt(map.num_active(), i);
    cell.num_cached += ValueAt(map.num_cached(), i);
    cell.num_active += num_active;
    cell.num_leaving += ValueAt(map.num_leaving(), i);
    cell.num_shared += ValueAt(map.num_shared(), i);
    if (num_active > cell.most) {
      cell.most = num_active;
      cell.holder = i < map.holder_size() ? map.holder(i) : 0;
    }
  }
  cell.num_blocks = std::max(double{1} * (end - first) * std::max(1, map.blocks_per_cell()),
                             cell.num_cached + cell.num_active + cell.num_leaving);
  return cell;
}

ColoredText TextOf(const Cell& cell, const MapGlyphs& glyphs) {
  if (cell.num_active > 0) {
    const auto shade = static_cast<int>(MapGlyphs::kNumShades * cell.num_active / cell.num_blocks);
    const char* glyph = cell.num_shared * 2 > cell.num_active
                            ? glyphs.shared
                            : glyphs.active[std::min(shade, MapGlyphs::kNumShades - 1)];
    return {glyph, ColorOfHolder(cell.holder)};
  }
  if (cell.num_leaving > 0) {
    return {glyphs.leaving, kLeavingColor};
  }
  return cell.num_cached > 0 ? ColoredText{glyphs.cached, kCachedColor}
                             : ColoredText{glyphs.free, kFreeColor};
}

}  // namespace

const MapGlyphs& MapGlyphsOf(bool has_color, bool has_unicode) {
  if (!has_unicode) {
    return kPlainGlyphs;
  }
  return has_color ? kColoredGlyphs : kUnicodeGlyphs;
}

std::string ColorOfHolder(uint64_t number) {
  return absl::StrCat("38;5;", kHolderColors[number % std::size(kHolderColors)]);
}

std::vector<std::vector<ColoredText>> BlockMapLines(const v1::BlockMap& map,
                                                    int width,
                                                    int max_lines,
                                                    const MapGlyphs& glyphs) {
  const int num_cells = std::min(
      kMaxCells, std::max({map.num_cached_size(), map.num_active_size(), map.num_leaving_size()}));
  // Two columns of a terminal are about as wide as a line is high, so they show a cell as a square.
  const int cell_columns = 2 * num_cells <= width * max_lines ? 2 : 1;
  const int columns = width / cell_columns;
  const int places = columns * max_lines;
  const int cells_per_place = std::max(1, (num_cells + places - 1) / places);
  std::vector<std::vector<ColoredText>> lines;
  int column = 0;
  for (int first = 0; first < num_cells; first += cells_per_place) {
    if (column == 0) {
      lines.emplace_back();
    }
    column = (column + 1) % columns;
    std::vector<ColoredText>& line = lines.back();
    ColoredText text =
        TextOf(CellsFrom(map, first, std::min(first + cells_per_place, num_cells)), glyphs);
    if (cell_columns == 2) {
      text.text += text.text;
    }
    if (!line.empty() && line.back().color == text.color) {
      line.back().text += text.text;
    } else {
      line.push_back(std::move(text));
    }
  }
  return lines;
}

}  // namespace quire
