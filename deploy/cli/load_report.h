// LoadReport turns records of requests into the figures by which users compare servers, with the
// names and the table of `vllm bench serve`.
//
// Definitions (vLLM's): TTFT from sending to the first token; TPOT (end-to-end - TTFT) / (output
// tokens - 1); ITL the gap between consecutive messages of one stream; latencies in ms over
// successful requests. The percentile is linear between closest ranks (numpy's default).
//
// Thread safety: value types and free functions.
#ifndef QUIRE_DEPLOY_CLI_LOAD_REPORT_H_
#define QUIRE_DEPLOY_CLI_LOAD_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "deploy/cli/load_generator.h"

namespace quire {

// Milliseconds.
struct LatencyFigures {
  double mean = 0;
  double median = 0;
  std::map<double, double> percentiles;  // percentage -> value
};

struct LoadReport {
  int64_t num_successful = 0;
  int64_t num_failed = 0;
  int64_t num_refused = 0;  // part of num_failed: RESOURCE_EXHAUSTED
  // Part of num_successful: requests within the deadline; all if there is no deadline.
  int64_t num_in_time = 0;
  double generator_cpu_seconds = 0;
  double duration_seconds = 0;
  int64_t num_input_tokens = 0;
  int64_t num_output_tokens = 0;
  double peak_output_tokens_per_second = 0;  // of the busiest whole second
  int64_t peak_concurrent_requests = 0;
  LatencyFigures ttft;
  LatencyFigures tpot;
  LatencyFigures itl;
  LatencyFigures e2e;
  LatencyFigures refusal;  // of refused requests, from sending to the end
};

// Percentile p (0 to 100) of values; 0 if there are none.
double Percentile(std::vector<double> values, double p);

// timeout_ms: the deadline for num_in_time; 0: none.
LoadReport MakeReport(const std::vector<RequestRecord>& records,
                      const std::vector<double>& percentiles,
                      int64_t timeout_ms = 0);

// The table, 50 columns wide. Unset rate and concurrency are left out.
std::string FormatTable(const LoadReport& report, const LoadOptions& options);

// One JSON object with vLLM's key names. details: null, or the records in order. With records, the
// object also lists their output_lens, output_token_ids and errors (empty: none).
std::string FormatJson(const LoadReport& report,
                       const LoadOptions& options,
                       const std::vector<RequestRecord>* details = nullptr);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_LOAD_REPORT_H_
