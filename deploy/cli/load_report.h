// MakeReport turns records of requests into a LoadReport: the figures by which users compare
// servers, with the names and the table of `vllm bench serve`.
//
// Definitions are vLLM's. TTFT: time from sending to the first token. TPOT: (end-to-end - TTFT) /
// (output tokens - 1). ITL: gap between consecutive messages of one stream. Latencies are in ms,
// over successful requests. Percentiles are interpolated linearly between the closest ranks
// (numpy's default).
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_DEPLOY_CLI_LOAD_REPORT_H_
#define QUIRE_DEPLOY_CLI_LOAD_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "deploy/cli/load_generator.h"

namespace quire {

// Latencies in milliseconds.
struct LatencyFigures {
  double mean = 0;
  double median = 0;
  std::map<double, double> percentiles;  // percentage -> value
};

struct LoadReport {
  int64_t num_successful = 0;
  int64_t num_failed = 0;
  int64_t num_refused = 0;  // part of num_failed: ended with RESOURCE_EXHAUSTED
  // Part of num_successful: requests that met the deadline; all of them if there is no deadline.
  int64_t num_in_time = 0;
  double generator_cpu_seconds = 0;
  double duration_seconds = 0;
  int64_t num_input_tokens = 0;
  int64_t num_output_tokens = 0;
  double peak_output_tokens_per_second = 0;  // output tokens in the busiest whole second
  int64_t peak_concurrent_requests = 0;
  LatencyFigures ttft;
  LatencyFigures tpot;
  LatencyFigures itl;
  LatencyFigures e2e;
  LatencyFigures refusal;  // time from sending to the end of refused requests
};

// Returns percentile p (0 to 100) of the values; 0 if there are no values.
double Percentile(std::vector<double> values, double p);

// Computes the figures of the records. `percentiles`: percentages for LatencyFigures. timeout_ms:
// the deadline for num_in_time; 0: no deadline.
LoadReport MakeReport(const std::vector<RequestRecord>& records,
                      const std::vector<double>& percentiles,
                      int64_t timeout_ms = 0);

// Returns the table, 50 columns wide. A rate or concurrency that was not set has no line.
std::string FormatTable(const LoadReport& report, const LoadOptions& options);

// Returns one JSON object with vLLM's key names. details: null, or the records in order. With
// records, the object also lists output_lens, output_token_ids and errors by request; an empty
// error means success.
std::string FormatJson(const LoadReport& report,
                       const LoadOptions& options,
                       const std::vector<RequestRecord>* details = nullptr);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_LOAD_REPORT_H_
