#include "deploy/cli/load_report.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "common/base/exit_codes.h"
#include "deploy/cli/bench_command.h"
#include "tests/deploy/ran_command.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

RequestRecord Record(const std::vector<int>& arrivals_ms, int end_ms, int start_ms = 0) {
  RequestRecord record;
  record.start = start_ms * kNanosPerMilli;
  record.end = end_ms * kNanosPerMilli;
  for (int ms : arrivals_ms) {
    record.arrivals.push_back(ms * kNanosPerMilli);
  }
  record.num_prompt_tokens = 10;
  record.num_output_tokens = static_cast<int32_t>(arrivals_ms.size());
  return record;
}

TEST(LoadReportTest, PercentileIsLinearBetweenRanks) {
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 50), 2.5);
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 100), 4);
  EXPECT_DOUBLE_EQ(Percentile({1, 2}, 99), 1.99);
  EXPECT_DOUBLE_EQ(Percentile({}, 50), 0);
}

TEST(LoadReportTest, LatenciesFollowTheirDefinitions) {
  LoadReport report = MakeReport({Record({100, 120, 160}, 160), Record({300}, 310)}, {99});

  EXPECT_EQ(report.num_successful, 2);
  EXPECT_DOUBLE_EQ(report.ttft.mean, 200);   // 100 and 300
  EXPECT_DOUBLE_EQ(report.tpot.mean, 30);    // (160 - 100) / 2; one token has none
  EXPECT_DOUBLE_EQ(report.itl.mean, 30);     // 20 and 40
  EXPECT_DOUBLE_EQ(report.e2e.median, 235);  // 160 and 310
  EXPECT_DOUBLE_EQ(report.duration_seconds, 0.31);
  EXPECT_EQ(report.peak_concurrent_requests, 2);
  EXPECT_EQ(report.num_input_tokens, 20);
  EXPECT_EQ(report.num_output_tokens, 4);
}

TEST(LoadReportTest, FailedRequestsAreCountedAndNotMeasured) {
  RequestRecord failed = Record({5000}, 9000);
  failed.status = absl::UnavailableError("");

  LoadReport report = MakeReport({Record({100}, 100), failed}, {99});

  EXPECT_EQ(report.num_failed, 1);
  EXPECT_DOUBLE_EQ(report.ttft.mean, 100);
  EXPECT_EQ(report.num_output_tokens, 1);
}

TEST(LoadReportTest, GoodputIsWhatIsCompleteInTimeAndRefusalsAreMeasuredApart) {
  RequestRecord refused = Record({}, 30);
  refused.status = absl::ResourceExhaustedError("");
  RequestRecord expired = Record({100}, 250);
  expired.status = absl::DeadlineExceededError("");
  const std::vector<RequestRecord> records = {
      Record({100}, 200), Record({100}, 201), Record({100}, 2000), refused, expired};

  const LoadReport report = MakeReport(records, {99}, /*timeout_ms=*/200);

  EXPECT_EQ(report.num_successful, 3);
  EXPECT_EQ(report.num_in_time, 1);
  EXPECT_EQ(report.num_failed, 2);
  EXPECT_EQ(report.num_refused, 1);
  EXPECT_DOUBLE_EQ(report.refusal.percentiles.at(99), 30);
  const std::string table = FormatTable(report, {.timeout_ms = 200});
  EXPECT_THAT(table, HasSubstr("Complete in time:                       1         \n"));
  EXPECT_THAT(table, HasSubstr("Refused requests:                       1         \n"));
  EXPECT_THAT(table, HasSubstr("Request goodput (req/s):                0.50      \n"));
  EXPECT_THAT(table, HasSubstr("P99 Refusal (ms):                       30.00     \n"));
  const auto json = nlohmann::json::parse(FormatJson(report, {.timeout_ms = 200}));
  EXPECT_EQ(json["request_goodput"], 0.5);
  EXPECT_EQ(json["refused"], 1);
  EXPECT_EQ(json["p99_refusal_ms"], 30);
}

TEST(LoadReportTest, WithoutADeadlineWhatSucceedsIsInTime) {
  const LoadReport report = MakeReport({Record({100}, 2000)}, {99});

  EXPECT_EQ(report.num_in_time, 1);
  EXPECT_THAT(FormatTable(report, {}), Not(HasSubstr("goodput")));
}

TEST(LoadReportTest, TableHasTheRowsUsersLookFor) {
  std::string table = FormatTable(MakeReport({Record({100, 200}, 200)}, {99}),
                                  {.requests_per_second = 4, .max_concurrency = 8});

  EXPECT_THAT(table, HasSubstr("============ Serving Benchmark Result ============\n"));
  EXPECT_THAT(table, HasSubstr("Successful requests:                    1         \n"));
  EXPECT_THAT(table, HasSubstr("Maximum request concurrency:            8         \n"));
  EXPECT_THAT(table, HasSubstr("Request rate configured (RPS):          4.00      \n"));
  EXPECT_THAT(table, HasSubstr("Output token throughput (tok/s):        10.00     \n"));
  EXPECT_THAT(table, HasSubstr("---------------Time to First Token----------------\n"));
  EXPECT_THAT(table, HasSubstr("P99 TTFT (ms):                          100.00    \n"));
}

TEST(LoadReportTest, JsonListsEveryRequestsTokensWhenAsked) {
  std::vector<RequestRecord> records = {Record({100, 200}, 200), Record({}, 50)};
  records[0].output_token_ids = {7, 5};
  records[1].status = absl::UnavailableError("gone");
  const LoadReport report = MakeReport(records, {99});

  EXPECT_THAT(FormatJson(report, {}), Not(HasSubstr("output_token_ids")));
  const auto json = nlohmann::json::parse(FormatJson(report, {}, &records));

  EXPECT_EQ(json["output_lens"], nlohmann::json::parse("[2, 0]"));
  EXPECT_EQ(json["output_token_ids"], nlohmann::json::parse("[[7, 5], []]"));
  EXPECT_EQ(json["errors"], nlohmann::json::parse(R"(["", "gone"])"));
}

TEST(LoadReportTest, JsonTakesErrorsThatAreNoUtf8) {
  std::vector<RequestRecord> records = {Record({}, 50)};
  records[0].status = absl::UnavailableError("gone \xFF");
  const auto json = nlohmann::json::parse(FormatJson(MakeReport(records, {99}), {}, &records));
  EXPECT_EQ(json["errors"][0], "gone \xEF\xBF\xBD");
}

TEST(BenchCommandTest, ValuesOutOfRangeAreRefusedBeforeTheLoad) {
  const std::pair<const char*, const char*> cases[] = {
      {"--metric-percentiles=50,110", "--metric-percentiles: must be in [0, 100] (got 110)"},
      {"--metric-percentiles=-50", "--metric-percentiles: must be in [0, 100] (got -50)"},
      {"--num-prompts=0", "--num-prompts: must be in [1, 1000000] (got 0)"},
      {"--num-prompts=2147483647", "--num-prompts: must be in [1, 1000000] (got 2147483647)"},
      {"--num-prompts=1000000 --random-input-len=1000",
       "--num-prompts: times --random-input-len must be at most 134217728 (got 1000000000)"},
      {"--random-input-len=-1", "--random-input-len: must be in [1, 134217728] (got -1)"},
      {"--random-output-len=0", "--random-output-len: must be in [1, 2147483647] (got 0)"},
      {"--num-warmups=-1", "--num-warmups: must be in [0, 2147483647] (got -1)"},
      {"--max-concurrency=-1", "--max-concurrency: must be in [0, 2147483647] (got -1)"},
      {"--timeout-ms=-1", "--timeout-ms: must be in [0, 2147483647] (got -1)"},
      {"--request-rate=-inf", "--request-rate: must be positive, or inf (got -inf)"},
      {"--burstiness=0", "--burstiness: must be positive (got 0)"},
      {"--burstiness=inf", "--burstiness needs a finite number"},
      {"--temperature=nan", "--temperature needs a finite number"},
      {"--model=\xFF", "--model needs text in UTF-8"},
  };
  for (const auto& [flags, error] : cases) {
    std::vector<std::string> args = absl::StrSplit(flags, ' ');
    args.push_back("--server=unix:/nonexistent");
    const RanCommand ran = Capture(RunBenchServe, args);
    EXPECT_EQ(ran.exit_code, kExitUsage) << flags;
    EXPECT_THAT(ran.err, HasSubstr(error)) << flags;
  }
}

}  // namespace
}  // namespace quire
