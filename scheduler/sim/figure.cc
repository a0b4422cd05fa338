#include "scheduler/sim/figure.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quire {
namespace {

FigureRow Judge(
    std::string quantity, std::string paper, double ours, std::string rule, bool holds) {
  return {.quantity = std::move(quantity),
          .paper = std::move(paper),
          .ours = FormatNumber(ours),
          .rule = std::move(rule),
          .verdict = holds ? Verdict::kMatch : Verdict::kMiss};
}

std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (char c : text) {
    quoted.append(c == '"' ? 2 : 1, c);
  }
  return quoted + "\"";
}

}  // namespace

FigureRow WithinPoints(std::string quantity, double paper, double ours, double points) {
  return Judge(std::move(quantity),
               FormatNumber(paper),
               ours,
               absl::StrCat("within ", FormatNumber(points), " points"),
               std::abs(ours - paper) <= points);
}

FigureRow WithinPercent(std::string quantity, double paper, double ours, double percent) {
  return Judge(std::move(quantity),
               FormatNumber(paper),
               ours,
               absl::StrCat("within ", FormatNumber(percent), " %"),
               std::abs(ours - paper) <= std::abs(paper) * percent / 100);
}

FigureRow WithinRange(std::string quantity, double low, double high, double ours) {
  return Judge(std::move(quantity),
               absl::StrCat(FormatNumber(low), " to ", FormatNumber(high)),
               ours,
               "in the range",
               ours >= low && ours <= high);
}

FigureRow Claim(std::string quantity, std::string paper, std::string ours, bool holds) {
  return {.quantity = std::move(quantity),
          .paper = std::move(paper),
          .ours = std::move(ours),
          .rule = "as said",
          .verdict = holds ? Verdict::kMatch : Verdict::kMiss};
}

FigureRow Shown(std::string quantity, double ours) {
  return {.quantity = std::move(quantity), .paper = "-", .ours = FormatNumber(ours), .rule = "-"};
}

std::string_view NameOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kMatch:
      return "match";
    case Verdict::kMiss:
      return "MISS";
    case Verdict::kNoPaperNumber:
      return "-";
  }
  return "";
}

std::string FormatNumber(double value) {
  const double size = std::abs(value);
  if (size >= 1000 || value == std::round(value)) {
    return absl::StrFormat("%.0f", value);
  }
  if (size >= 100) {
    return absl::StrFormat("%.1f", value);
  }
  return size >= 1 ? absl::StrFormat("%.2f", value) : absl::StrFormat("%.4f", value);
}

std::string FormatTable(const Figure& figure) {
  size_t quantity_width = 8;
  size_t paper_width = 5;
  size_t ours_width = 4;
  for (const FigureRow& row : figure.rows) {
    quantity_width = std::max(quantity_width, row.quantity.size());
    paper_width = std::max(paper_width, row.paper.size());
    ours_width = std::max(ours_width, row.ours.size());
  }
  std::string table = absl::StrCat(figure.title, "\n");
  const auto add = [&](const std::string& quantity,
                       const std::string& paper,
                       const std::string& ours,
                       std::string_view verdict,
                       const std::string& rule) {
    std::string verdict_cell(verdict);
    // The header "verdict" has 7 characters.
    verdict_cell.resize(std::max<size_t>(verdict_cell.size(), 7), ' ');
    absl::StrAppend(&table,
                    "  ",
                    quantity,
                    std::string(quantity_width - quantity.size(), ' '),
                    "  ",
                    std::string(paper_width - paper.size(), ' '),
                    paper,
                    "  ",
                    std::string(ours_width - ours.size(), ' '),
                    ours,
                    "  ",
                    verdict_cell,
                    "  ",
                    rule,
                    "\n");
  };
  add("quantity", "paper", "ours", "verdict", "rule");
  for (const FigureRow& row : figure.rows) {
    add(row.quantity, row.paper, row.ours, NameOf(row.verdict), row.rule);
  }
  return table;
}

std::string FormatRowsCsv(const Figure& figure) {
  std::string csv = "quantity,paper,ours,rule,verdict\n";
  for (const FigureRow& row : figure.rows) {
    absl::StrAppend(&csv,
                    CsvField(row.quantity),
                    ",",
                    CsvField(row.paper),
                    ",",
                    CsvField(row.ours),
                    ",",
                    CsvField(row.rule),
                    ",",
                    std::string(NameOf(row.verdict)),
                    "\n");
  }
  return csv;
}

std::string FormatPlotCsv(const Plot& plot) {
  std::string csv =
      absl::StrCat("series,", CsvField(plot.x_label), ",", CsvField(plot.y_label), "\n");
  for (const Series& series : plot.series) {
    for (const auto& [x, y] : series.points) {
      absl::StrAppend(&csv, CsvField(series.name), ",", absl::StrFormat("%.9g,%.9g\n", x, y));
    }
  }
  return csv;
}

}  // namespace quire
