#include "scheduler/sim/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "common/base/check.h"

namespace quire {
namespace {

// Sizes in pixels.
constexpr double kWidth = 720;
constexpr double kHeight = 440;
constexpr double kLeft = 80;
constexpr double kRight = 190;  // room for the legend
constexpr double kTop = 40;
constexpr double kBottom = 60;
constexpr int kNumTicks = 5;

// Colors that are dark enough on white, and distinct for the color-blind (Okabe and Ito).
constexpr const char* kColors[] = {
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// Returns the smallest number >= x that is 1, 2 or 5 times a power of ten.
double RoundNumber(double x) {
  const double power = std::pow(10, std::floor(std::log10(x)));
  for (double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= x * (1 - 1e-9)) {
      return digit * power;
    }
  }
  return 10 * power;
}

class Axes {
 public:
  explicit Axes(const Plot& plot) : has_log_x_(plot.has_log_x) {
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    double top = 0;
    for (const Series& series : plot.series) {
      for (const auto& [x, y] : series.points) {
        QUIRE_CHECK(!has_log_x_ || x > 0);
        low = std::min(low, Position(x));
        high = std::max(high, Position(x));
        top = std::max(top, y);
      }
    }
    low_ = low <= high ? low : 0;
    high_ = high > low ? high : low_ + 1;
    step_ = top > 0 ? RoundNumber(top / kNumTicks) : 1;
    top_ = step_ * std::max(1.0, std::ceil(top / step_ - 1e-9));
  }

  double PixelX(double x) const {
    return kLeft + (Position(x) - low_) / (high_ - low_) * (kWidth - kLeft - kRight);
  }
  double PixelY(double y) const {
    return kHeight - kBottom - y / top_ * (kHeight - kTop - kBottom);
  }

  std::vector<double> TicksX() const {
    const double step = has_log_x_ ? 1.0 : RoundNumber((high_ - low_) / kNumTicks);
    std::vector<double> ticks = Multiples(step, std::ceil(low_ / step), high_ / step);
    if (has_log_x_) {
      std::transform(
          ticks.begin(), ticks.end(), ticks.begin(), [](double at) { return std::exp2(at); });
    }
    return ticks;
  }
  std::vector<double> TicksY() const { return Multiples(step_, 0, top_ / step_); }

 private:
  // Returns step * first, step * (first + 1), and so on, up to step * last. Tolerates a `last` that
  // rounding made a little too small.
  static std::vector<double> Multiples(double step, double first, double last) {
    const double count = std::floor(last - first + 1e-9) + 1;
    std::vector<double> multiples(static_cast<size_t>(std::max(count, 0.0)));
    for (size_t i = 0; i < multiples.size(); ++i) {
      multiples[i] = step * (first + static_cast<double>(i));
    }
    return multiples;
  }

  double Position(double x) const { return has_log_x_ ? std::log2(x) : x; }

  bool has_log_x_;
  // low_ and high_ are the ends of the x axis, as Position returns them.
  double low_ = 0;
  double high_ = 1;
  double top_ = 1;
  double step_ = 1;
};

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, Escape(text));
}

std::string Line(double x1, double y1, double x2, double y2, const char* color) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                         x1,
                         y1,
                         x2,
                         y2,
                         color);
}

std::string DrawAxes(const Plot& plot, const Axes& axes) {
  const double floor = kHeight - kBottom;
  const double right = kWidth - kRight;
  std::string svg;
  for (double x : axes.TicksX()) {
    absl::StrAppend(&svg,
                    Line(axes.PixelX(x), kTop, axes.PixelX(x), floor, "#dddddd"),
                    Text(axes.PixelX(x), floor + 18, "middle", absl::StrFormat("%.4g", x)));
  }
  for (double y : axes.TicksY()) {
    absl::StrAppend(&svg,
                    Line(kLeft, axes.PixelY(y), right, axes.PixelY(y), "#dddddd"),
                    Text(kLeft - 8, axes.PixelY(y) + 4, "end", absl::StrFormat("%.4g", y)));
  }
  absl::StrAppend(&svg,
                  Line(kLeft, floor, right, floor, "#000000"),
                  Line(kLeft, kTop, kLeft, floor, "#000000"),
                  Text((kLeft + right) / 2, kHeight - 16, "middle", plot.x_label),
                  Text(kLeft, kTop - 10, "middle", plot.y_label),
                  Text((kLeft + right) / 2, 16, "middle", plot.title));
  return svg;
}

std::string DrawSeries(const Series& series, size_t index, const Axes& axes) {
  const char* color = kColors[index % std::size(kColors)];
  std::string svg;
  std::string path;
  for (const auto& [x, y] : series.points) {
    absl::StrAppendFormat(&path, "%.1f,%.1f ", axes.PixelX(x), axes.PixelY(y));
    absl::StrAppendFormat(&svg,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                          axes.PixelX(x),
                          axes.PixelY(y),
                          color);
  }
  absl::StrAppendFormat(
      &svg, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\"/>\n", path, color);
  const double y = kTop + 20 * static_cast<double>(index);
  const double x = kWidth - kRight + 14;
  absl::StrAppend(&svg, Line(x, y, x + 20, y, color), Text(x + 26, y + 4, "start", series.name));
  return svg;
}

}  // namespace

std::string DrawSvg(const Plot& plot) {
  const Axes axes(plot);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      kWidth,
      kHeight);
  absl::StrAppend(&svg, DrawAxes(plot, axes));
  for (size_t i = 0; i < plot.series.size(); ++i) {
    absl::StrAppend(&svg, DrawSeries(plot.series[i], i, axes));
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace quire
