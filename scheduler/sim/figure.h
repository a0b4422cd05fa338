// A Figure reproduces a table or a figure of a paper. It has rows and plots. The rows compare our
// numbers with the paper's numbers and give verdicts. Rows and plots can be written as CSV.
//
// Thread safety: value types; the free functions are safe from any thread.
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
  std::string rule;  // condition of a match
  Verdict verdict = Verdict::kNoPaperNumber;
};

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (x, y), ordered by x
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

// Each function returns a row that judges `ours` by the rule in the function's name; Shown gives no
// verdict.
FigureRow WithinPoints(std::string quantity, double paper, double ours, double points);
FigureRow WithinPercent(std::string quantity, double paper, double ours, double percent);
FigureRow WithinRange(std::string quantity, double low, double high, double ours);
FigureRow Claim(std::string quantity, std::string paper, std::string ours, bool holds);
FigureRow Shown(std::string quantity, double ours);

// Returns "match", "MISS" or "-".
std::string_view NameOf(Verdict verdict);

// Returns the number in fixed notation. Whole numbers and numbers of at least 1000 have no
// decimals; all other numbers have 1 to 4.
std::string FormatNumber(double value);

// Returns the rows as a table of text, under the title.
std::string FormatTable(const Figure& figure);

// Returns the rows as CSV with a header line: quantity,paper,ours,rule,verdict. A field with a
// comma or a quotation mark is quoted.
std::string FormatRowsCsv(const Figure& figure);

// Returns the points as CSV with a header line: series, x, y.
std::string FormatPlotCsv(const Plot& plot);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_FIGURE_H_
