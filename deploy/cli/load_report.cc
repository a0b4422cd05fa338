#include "deploy/cli/load_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr int kTableWidth = 50;

double Seconds(Instant from, Instant to) {
  return static_cast<double>(to - from) / static_cast<double>(kNanosPerSecond);
}

LatencyFigures Summarize(std::vector<double> seconds, const std::vector<double>& percentiles) {
  LatencyFigures figures;
  if (seconds.empty()) {
    return figures;
  }
  for (double& value : seconds) {
    value *= 1000;
  }
  figures.mean =
      std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
  figures.median = Percentile(seconds, 50);
  for (double p : percentiles) {
    figures.percentiles[p] = Percentile(seconds, p);
  }
  return figures;
}

int64_t PeakConcurrency(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<Instant, int>> changes;
  for (const RequestRecord& record : records) {
    changes.emplace_back(record.start, 1);
    changes.emplace_back(record.end, -1);
  }
  std::sort(changes.begin(), changes.end());
  int64_t now = 0;
  int64_t peak = 0;
  for (const auto& [time, change] : changes) {
    now += change;
    peak = std::max(peak, now);
  }
  return peak;
}

double PeakTokensPerSecond(const std::vector<RequestRecord>& records, Instant first) {
  std::map<int64_t, double> tokens_in_second;
  for (const RequestRecord& record : records) {
    const double tokens_per_message = record.arrivals.empty()
                                          ? 0
                                          : static_cast<double>(record.num_output_tokens) /
                                                static_cast<double>(record.arrivals.size());
    for (Instant arrival : record.arrivals) {
      tokens_in_second[(arrival - first) / kNanosPerSecond] += tokens_per_message;
    }
  }
  double peak = 0;
  for (const auto& [second, tokens] : tokens_in_second) {
    peak = std::max(peak, tokens);
  }
  return peak;
}

void AppendRule(std::string& table, std::string_view title, char fill) {
  const size_t left = (kTableWidth - title.size()) / 2;
  table.append(left, fill);
  table.append(title);
  table.append(kTableWidth - title.size() - left, fill);
  table.push_back('\n');
}

void AppendRow(std::string& table, std::string_view name, int64_t value) {
  absl::StrAppendFormat(&table, "%-40s%-10d\n", std::string(name), value);
}

void AppendRow(std::string& table, std::string_view name, double value) {
  absl::StrAppendFormat(&table, "%-40s%-10.2f\n", std::string(name), value);
}

void AppendLatency(std::string& table,
                   std::string_view title,
                   std::string_view shorthand,
                   const LatencyFigures& figures) {
  AppendRule(table, title, '-');
  AppendRow(table, absl::StrCat("Mean ", ToAbsl(shorthand), " (ms):"), figures.mean);
  AppendRow(table, absl::StrCat("Median ", ToAbsl(shorthand), " (ms):"), figures.median);
  for (const auto& [p, value] : figures.percentiles) {
    AppendRow(table, absl::StrCat("P", p, " ", ToAbsl(shorthand), " (ms):"), value);
  }
}

void AddLatency(nlohmann::ordered_json& json,
                const std::string& name,
                const LatencyFigures& figures) {
  json[absl::StrCat("mean_", name, "_ms")] = figures.mean;
  json[absl::StrCat("median_", name, "_ms")] = figures.median;
  for (const auto& [p, value] : figures.percentiles) {
    json[absl::StrCat("p", p, "_", name, "_ms")] = value;
  }
}

void AddDetails(nlohmann::ordered_json& json, const std::vector<RequestRecord>& records) {
  auto& lengths = json["output_lens"] = nlohmann::ordered_json::array();
  auto& token_ids = json["output_token_ids"] = nlohmann::ordered_json::array();
  auto& errors = json["errors"] = nlohmann::ordered_json::array();
  for (const RequestRecord& record : records) {
    lengths.push_back(record.num_output_tokens);
    token_ids.push_back(record.output_token_ids);
    errors.push_back(std::string(record.status.message()));
  }
}

}  // namespace

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const double rank = p / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (rank - static_cast<double>(low)) * (values[high] - values[low]);
}

LoadReport MakeReport(const std::vector<RequestRecord>& records,
                      const std::vector<double>& percentiles,
                      int64_t timeout_ms) {
  LoadReport report;
  if (records.empty()) {
    return report;
  }
  std::vector<double> ttft, tpot, itl, e2e, refusal;
  Instant first = records.front().start;
  Instant last = first;
  for (const RequestRecord& record : records) {
    first = std::min(first, record.start);
    last = std::max(last, record.end);
    if (!record.status.ok() || record.arrivals.empty()) {
      ++report.num_failed;
      if (absl::IsResourceExhausted(record.status)) {
        ++report.num_refused;
        refusal.push_back(Seconds(record.start, record.end));
      }
      continue;
    }
    ++report.num_successful;
    const bool is_late = timeout_ms > 0 && record.end - record.start > timeout_ms * kNanosPerMilli;
    report.num_in_time += is_late ? 0 : 1;
    report.num_input_tokens += record.num_prompt_tokens;
    report.num_output_tokens += record.num_output_tokens;
    ttft.push_back(Seconds(record.start, record.arrivals.front()));
    e2e.push_back(Seconds(record.start, record.end));
    if (record.num_output_tokens > 1) {
      tpot.push_back((e2e.back() - ttft.back()) / (record.num_output_tokens - 1));
    }
    for (size_t i = 1; i < record.arrivals.size(); ++i) {
      itl.push_back(Seconds(record.arrivals[i - 1], record.arrivals[i]));
    }
  }
  report.duration_seconds = Seconds(first, last);
  report.peak_concurrent_requests = PeakConcurrency(records);
  report.peak_output_tokens_per_second = PeakTokensPerSecond(records, first);
  report.ttft = Summarize(std::move(ttft), percentiles);
  report.tpot = Summarize(std::move(tpot), percentiles);
  report.itl = Summarize(std::move(itl), percentiles);
  report.e2e = Summarize(std::move(e2e), percentiles);
  report.refusal = Summarize(std::move(refusal), percentiles);
  return report;
}

std::string FormatTable(const LoadReport& report, const LoadOptions& options) {
  const double seconds = std::max(report.duration_seconds, 1e-9);
  const auto rate = [seconds](int64_t n) { return static_cast<double>(n) / seconds; };
  std::string table;
  AppendRule(table, " Serving Benchmark Result ", '=');
  AppendRow(table, "Successful requests:", report.num_successful);
  AppendRow(table, "Failed requests:", report.num_failed);
  if (options.timeout_ms > 0) {
    AppendRow(table, "Refused requests:", report.num_refused);
    AppendRow(table, "Complete in time:", report.num_in_time);
    AppendRow(table, "Request goodput (req/s):", rate(report.num_in_time));
    AppendRow(table, "Generator CPU (s):", report.generator_cpu_seconds);
  }
  if (options.max_concurrency > 0) {
    AppendRow(table, "Maximum request concurrency:", int64_t{options.max_concurrency});
  }
  if (std::isfinite(options.requests_per_second)) {
    AppendRow(table, "Request rate configured (RPS):", options.requests_per_second);
  }
  AppendRow(table, "Benchmark duration (s):", report.duration_seconds);
  AppendRow(table, "Total input tokens:", report.num_input_tokens);
  AppendRow(table, "Total generated tokens:", report.num_output_tokens);
  AppendRow(table, "Request throughput (req/s):", rate(report.num_successful));
  AppendRow(table, "Output token throughput (tok/s):", rate(report.num_output_tokens));
  AppendRow(table, "Peak output token throughput (tok/s):", report.peak_output_tokens_per_second);
  AppendRow(table, "Peak concurrent requests:", report.peak_concurrent_requests);
  AppendRow(table,
            "Total token throughput (tok/s):",
            rate(report.num_input_tokens + report.num_output_tokens));
  AppendLatency(table, "Time to First Token", "TTFT", report.ttft);
  AppendLatency(table, "Time per Output Token (excl. 1st token)", "TPOT", report.tpot);
  AppendLatency(table, "Inter-token Latency", "ITL", report.itl);
  AppendLatency(table, "End-to-end Latency", "E2EL", report.e2e);
  if (report.num_refused > 0) {
    AppendLatency(table, "Latency of Refusals", "Refusal", report.refusal);
  }
  AppendRule(table, "", '=');
  return table;
}

std::string FormatJson(const LoadReport& report,
                       const LoadOptions& options,
                       const std::vector<RequestRecord>* details) {
  const double seconds = std::max(report.duration_seconds, 1e-9);
  nlohmann::ordered_json json;
  json["completed"] = report.num_successful;
  json["failed"] = report.num_failed;
  if (options.timeout_ms > 0) {
    json["refused"] = report.num_refused;
    json["in_time"] = report.num_in_time;
    json["request_goodput"] = static_cast<double>(report.num_in_time) / seconds;
    AddLatency(json, "refusal", report.refusal);
  }
  json["generator_cpu_s"] = report.generator_cpu_seconds;
  json["duration"] = report.duration_seconds;
  json["max_concurrency"] =
      options.max_concurrency > 0 ? nlohmann::ordered_json(options.max_concurrency) : nullptr;
  json["request_rate"] = std::isfinite(options.requests_per_second)
                             ? nlohmann::ordered_json(options.requests_per_second)
                             : nlohmann::ordered_json("inf");
  json["total_input_tokens"] = report.num_input_tokens;
  json["total_output_tokens"] = report.num_output_tokens;
  json["request_throughput"] = static_cast<double>(report.num_successful) / seconds;
  json["output_throughput"] = static_cast<double>(report.num_output_tokens) / seconds;
  json["max_output_tokens_per_s"] = report.peak_output_tokens_per_second;
  json["max_concurrent_requests"] = report.peak_concurrent_requests;
  json["total_token_throughput"] =
      static_cast<double>(report.num_input_tokens + report.num_output_tokens) / seconds;
  AddLatency(json, "ttft", report.ttft);
  AddLatency(json, "tpot", report.tpot);
  AddLatency(json, "itl", report.itl);
  AddLatency(json, "e2el", report.e2e);
  if (details != nullptr) {
    AddDetails(json, *details);
  }
  // Replaces bytes that are not UTF-8, because a server's error message may have any bytes.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace quire
