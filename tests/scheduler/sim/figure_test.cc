#include "scheduler/sim/figure.h"

#include <string>

#include "gtest/gtest.h"

#include "scheduler/sim/paper_figures.h"
#include "scheduler/sim/svg_plot.h"
#include "scheduler/sim/throughput.h"

namespace quire {
namespace {

TEST(FigureRowTest, ANumberOutsideItsRuleIsAMiss) {
  EXPECT_EQ(WithinPoints("q", 20, 22, 2).verdict, Verdict::kMatch);
  EXPECT_EQ(WithinPoints("q", 20, 17.9, 2).verdict, Verdict::kMiss);
  EXPECT_EQ(WithinPercent("q", 200, 210, 5).verdict, Verdict::kMatch);
  EXPECT_EQ(WithinPercent("q", 200, 189, 5).verdict, Verdict::kMiss);
  EXPECT_EQ(WithinRange("q", 1.7, 2.7, 1.7).verdict, Verdict::kMatch);
  EXPECT_EQ(WithinRange("q", 1.7, 2.7, 2.71).verdict, Verdict::kMiss);
  EXPECT_EQ(Claim("q", "p", "o", false).verdict, Verdict::kMiss);
}

TEST(FormatTableTest, PrintsTheMissInCapitalsBesideBothNumbers) {
  Figure figure{.title = "Fig 0"};
  figure.rows.push_back(WithinPercent("batch", 30.42, 20, 5));
  figure.rows.push_back(Shown("requests", 7));

  EXPECT_EQ(FormatTable(figure),
            "Fig 0\n"
            "  quantity  paper  ours  verdict  rule\n"
            "  batch     30.42    20  MISS     within 5 %\n"
            "  requests      -     7  -        -\n");
}

TEST(FormatRowsCsvTest, QuotesCommasAndQuotes) {
  Figure figure;
  figure.rows.push_back(Claim("a, \"b\"", "1", "2", true));

  EXPECT_EQ(FormatRowsCsv(figure),
            "quantity,paper,ours,rule,verdict\n\"a, \"\"b\"\"\",1,2,as said,match\n");
}

TEST(FormatPlotCsvTest, HasALineForEachPoint) {
  const Plot plot{.x_label = "x", .y_label = "y", .series = {{"s", {{1, 0.5}, {2, 3}}}}};

  EXPECT_EQ(FormatPlotCsv(plot), "series,x,y\ns,1,0.5\ns,2,3\n");
}

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(DrawSvgTest, DrawsAMarkForEachPointALineForEachSeriesAndEscapes) {
  const Plot plot{.title = "a < b & c",
                  .x_label = "x",
                  .y_label = "y",
                  .has_log_x = true,
                  .series = {{"one", {{1, 0}, {256, 10}}}, {"two", {{16, 5}}}}};

  const std::string svg = DrawSvg(plot);

  EXPECT_EQ(CountOf(svg, "<circle"), 3);
  EXPECT_EQ(CountOf(svg, "<polyline"), 2);
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  // Left and right end of the axes at the extremes of x, the bottom at 0.
  EXPECT_NE(svg.find("<polyline points=\"80.0,380.0 530.0,40.0 \""), std::string::npos) << svg;
  EXPECT_NE(svg.find("<polyline points=\"305.0,210.0 \""), std::string::npos) << svg;
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST(DrawSvgTest, APlotOfNothingIsStillAPlot) {
  const std::string svg = DrawSvg({.title = "empty"});

  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(PaperFiguresTest, Table1MatchesToTheDigit) {
  absl::StatusOr<Figure> figure = MakeFigure("table1", {});

  ASSERT_TRUE(figure.ok());
  ASSERT_EQ(figure->rows.size(), 3u);
  for (const FigureRow& row : figure->rows) {
    EXPECT_EQ(row.verdict, Verdict::kMatch) << row.quantity;
    EXPECT_EQ(row.ours, row.paper);
  }
}

TEST(PaperFiguresTest, MoreSequencesShareMoreAndBeamsShareMost) {
  absl::StatusOr<Figure> figure = MakeFigure("fig15", {.seed = 1, .trace_minutes = 1});

  ASSERT_TRUE(figure.ok());
  ASSERT_EQ(figure->plots.size(), 1u);
  const std::vector<Series>& series = figure->plots[0].series;
  for (size_t width = 0; width < 3; ++width) {
    EXPECT_LT(series[0].points[width].second, series[2].points[width].second);
    for (size_t kind : {size_t{0}, size_t{2}}) {
      EXPECT_TRUE(width == 0 ||
                  series[kind].points[width - 1].second < series[kind].points[width].second);
    }
  }
}

TEST(PaperFiguresTest, BeamsGainMoreFromPagingThanSamples) {
  absl::StatusOr<Figure> figure = MakeFigure("fig14", {.seed = 1, .trace_minutes = 0.05});

  ASSERT_TRUE(figure.ok()) << figure.status();
  EXPECT_EQ(figure->plots.size(), 7u);  // one output; two, four and six, sampled and beams
  int num_beams = 0;
  for (const FigureRow& row : figure->rows) {
    if (row.paper == "more than parallel") {
      ++num_beams;
      EXPECT_EQ(row.verdict, Verdict::kMatch) << row.quantity << ": " << row.ours;
      EXPECT_GT(std::stod(row.ours), 1);
    }
  }
  EXPECT_EQ(num_beams, 3);
}

TEST(PaperFiguresTest, OrcaMaxBatchesSevenRequestsAndPagingKeepsThePoolFull) {
  absl::StatusOr<Figure> batches = MakeFigure("fig13", {.seed = 1, .trace_minutes = 4});
  absl::StatusOr<Figure> memory = MakeFigure("fig2", {.seed = 1, .trace_minutes = 10});

  ASSERT_TRUE(batches.ok() && memory.ok());
  EXPECT_EQ(batches->rows[0].quantity, "Orca (Max), ShareGPT-like");
  EXPECT_NEAR(std::stod(batches->rows[0].ours), 7, 0.35);
  const FigureRow& paged = memory->rows[12];
  EXPECT_EQ(paged.quantity, "Quire (paged), tokens stored, %");
  EXPECT_GT(std::stod(paged.ours), 90);
}

TEST(PaperFiguresTest, WindowsNeedAndWasteWhatTheVattentionPaperSays) {
  absl::StatusOr<Figure> figure = MakeFigure("vattention", {});

  ASSERT_TRUE(figure.ok()) << figure.status();
  int num_judged = 0;
  for (const FigureRow& row : figure->rows) {
    num_judged += row.verdict != Verdict::kNoPaperNumber ? 1 : 0;
    // The one that README.md explains.
    if (row.quantity != "Fig 10, a step that waits for its pages, ms") {
      EXPECT_NE(row.verdict, Verdict::kMiss) << row.quantity << ": " << row.ours;
    }
  }
  EXPECT_EQ(num_judged, 24);
  EXPECT_EQ(figure->plots.size(), 2u);
}

TEST(PaperFiguresTest, AnUnknownFigureIsRefusedWithTheKnownOnes) {
  const absl::Status status = MakeFigure("fig99", {}).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("fig18b"), std::string::npos);
}

TEST(FindSustainedRateTest, FindsTheRateWhereTheLatencyCrossesItsLimit) {
  const SimConfig config = {.platform = *FindPlatform("a100-opt-13b"),
                            .policy = MemoryPolicy::kOrcaMax};
  const auto trace_at_rate = [](double rate) {
    return PoissonTrace(
        {.lengths = ShareGptLike(), .requests_per_second = rate, .duration_s = 900, .seed = 1});
  };

  absl::StatusOr<SustainedRate> found = FindSustainedRate(config, trace_at_rate, 0.01);

  ASSERT_TRUE(found.ok()) << found.status();
  const double rate = found->requests_per_second;
  EXPECT_LE(RunSimulation(config, trace_at_rate(rate))->mean_normalized_latency_s,
            kLatencyLimitSeconds);
  EXPECT_GT(RunSimulation(config, trace_at_rate(1.02 * rate))->mean_normalized_latency_s,
            kLatencyLimitSeconds);
  EXPECT_FALSE(found->points.empty());
}

}  // namespace
}  // namespace quire
