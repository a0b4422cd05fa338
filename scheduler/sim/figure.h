// A Figure is one of the paper's tables or figures, made anew: rows that stand beside the paper's
// numbers with a verdict, the data as CSV, and a plot.
//
// Thread safety: value types; the functions share nothing.
#ifndef QUIRE_SCHEDULER_SIM_FIGURE_H_
#define QUIRE_SCHEDULER_SIM_FIGURE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

enum class Verdict : uint8_t {
  kMatch,
  kMiss,
  kNoPaperNumber,  // shown, not judged
};

struct FigureRow {
  std::string quantity;
  std::string paper;
  std::string ours;
  std::string rule;  // what counts as a match
  Verdict verdict = Verdict::kNoPaperNumber;
};

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // by x
};

struct Plot {
  std::string file_name;  // without ".svg"
  std::string title;
  std::string x_label;
  std::string y_label;
  bool has_log_x = false;
  std::vector<Series> series;
};

struct Figure {
  std::string title;
  std::vector<FigureRow> rows;
  std::vector<Plot> plots;
};

// Each returns a row that judges a number by the rule in its name; Shown judges nothing.
FigureRow WithinPoints(std::string quantity, double paper, double ours, double points);
FigureRow WithinPercent(std::string quantity, double paper, double ours, double percent);
FigureRow WithinRange(std::string quantity, double low, double high, double ours);
FigureRow Claim(std::string quantity, std::string paper, std::string ours, bool holds);
FigureRow Shown(std::string quantity, double ours);

// Returns "match", "MISS" or "-".
std::string_view NameOf(Verdict verdict);

// Fixed notation. Whole numbers and numbers from 1000 have no decimals; smaller ones have 1 to 4.
std::string FormatNumber(double value);

// The rows as a table of text, under the title.
std::string FormatTable(const Figure& figure);

// CSV with a header line: quantity,paper,ours,rule,verdict. Quotes fields with commas or quotes.
std::string FormatRowsCsv(const Figure& figure);

// CSV with a header line: series, x, y.
std::string FormatPlotCsv(const Plot& plot);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_FIGURE_H_
