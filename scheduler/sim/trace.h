// A Trace is the workload of a simulation: for each request its arrival, the length of its prompt
// and the length of its output.
//
// Thread safety: value types; the free functions are safe from any thread.
// Units:         arrivals are nanoseconds from the start of the trace, ascending.
#ifndef QUIRE_SCHEDULER_SIM_TRACE_H_
#define QUIRE_SCHEDULER_SIM_TRACE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/clock.h"
#include "scheduler/sim/length_model.h"

namespace quire {

struct SimRequest {
  Instant arrival = 0;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;

  friend bool operator==(const SimRequest&, const SimRequest&) = default;
};

struct Trace {
  std::vector<SimRequest> requests;
  // Length of the beginning that all prompts share. SimRequest::prompt_tokens includes it.
  int32_t shared_prefix_tokens = 0;

  friend bool operator==(const Trace&, const Trace&) = default;
};

struct TraceOptions {
  LengthShape lengths;
  double requests_per_second = 1;
  double duration_s = 3600;  // arrivals end before this time
  uint64_t seed = 1;
};

// Makes a trace with Poisson arrivals. The order of lengths depends on the seed alone: a higher
// rate gives the same requests closer together, followed by more requests.
Trace PoissonTrace(const TraceOptions& options);

// Makes a trace of num_requests requests that all arrive at the start. Ignores the rate and the
// duration.
Trace OfflineTrace(const TraceOptions& options, int32_t num_requests);

// Makes the trace of PoissonTrace, with prefix_tokens shared tokens before every prompt.
Trace SharedPrefixTrace(const TraceOptions& options, int32_t prefix_tokens);

// ChatTrace makes a trace of chats, as in section 6.5 of the PagedAttention paper. Each request is
// a random turn of a chat of kTurnsPerChat turns. The prompt is the chat so far plus the new
// question, cut to the last 1,024 tokens. The output has at most 1,024 tokens. No KV cache is kept
// between turns.
inline constexpr int32_t kTurnsPerChat = 8;
Trace ChatTrace(const TraceOptions& options);

// Parses one request a line: arrival_s,prompt_tokens,output_tokens. Lines that are empty or begin
// with '#', and a header line, are skipped. Errors: kInvalidArgument, with the line's number, if a
// line is not three numbers, a number is out of range, or an arrival is before the previous one;
// kInvalidArgument if the text holds no request.
absl::StatusOr<Trace> ParseTrace(std::string_view text);

// Errors: kNotFound if the file cannot be read or is empty, and those of ParseTrace.
absl::StatusOr<Trace> ReadTraceFile(const std::string& path);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_TRACE_H_
