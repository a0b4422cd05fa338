#include "scheduler/sim/trace.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "common/base/check.h"

namespace quire {
namespace {

constexpr int32_t kMaxChatPrompt = 1024;
constexpr int32_t kMaxChatOutput = 1024;
constexpr double kMaxArrivalSeconds = 1e8;  // three years; keeps nanoseconds far from overflow
constexpr int32_t kMaxLength = 1 << 24;     // upper bound on a length in a trace file

// Separate random sources, so that the number of draws for lengths does not change the arrivals.
struct Sources {
  explicit Sources(uint64_t seed) : arrivals(seed), lengths(~seed) {}
  SimRandom arrivals;
  SimRandom lengths;
};

Instant NanosOfSeconds(double seconds) {
  return static_cast<Instant>(std::llround(seconds * static_cast<double>(kNanosPerSecond)));
}

Lengths DrawChatTurn(const LengthModel& model, SimRandom& random) {
  const auto turn = static_cast<int32_t>(random.Uniform() * kTurnsPerChat);
  int64_t history = 0;
  for (int32_t i = 0; i < turn; ++i) {
    const Lengths earlier = model.Draw(random);
    history += earlier.prompt_tokens + earlier.output_tokens;
  }
  const Lengths now = model.Draw(random);
  const int64_t prompt = std::min<int64_t>(history + now.prompt_tokens, kMaxChatPrompt);
  return {.prompt_tokens = static_cast<int32_t>(prompt),
          .output_tokens = std::min(now.output_tokens, kMaxChatOutput)};
}

template <typename DrawLengths>
Trace MakeTrace(const TraceOptions& options, DrawLengths draw) {
  QUIRE_CHECK(options.requests_per_second > 0 && options.duration_s > 0);
  const LengthModel model(options.lengths);
  Sources sources(options.seed);
  Trace trace;
  double arrival_s = 0;
  while (true) {
    arrival_s += sources.arrivals.Exponential() / options.requests_per_second;
    if (arrival_s >= options.duration_s) {
      return trace;
    }
    const Lengths lengths = draw(model, sources.lengths);
    trace.requests.push_back({.arrival = NanosOfSeconds(arrival_s),
                              .prompt_tokens = lengths.prompt_tokens,
                              .output_tokens = lengths.output_tokens});
  }
}

absl::Status Fault(size_t line_number, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line_number, ": ", std::string(what)));
}

absl::StatusOr<SimRequest> ParseLine(const std::string& line, size_t number) {
  const std::vector<std::string> fields = absl::StrSplit(line, ',');
  double arrival_s = 0;
  SimRequest request;
  if (fields.size() != 3 || !absl::SimpleAtod(fields[0], &arrival_s) ||
      !absl::SimpleAtoi(fields[1], &request.prompt_tokens) ||
      !absl::SimpleAtoi(fields[2], &request.output_tokens)) {
    return Fault(number, "must have the fields arrival_s,prompt_tokens,output_tokens");
  }
  if (!(arrival_s >= 0 && arrival_s <= kMaxArrivalSeconds)) {
    return Fault(number, "arrival_s must be from 0 to 1e8");
  }
  if (request.prompt_tokens < 1 || request.output_tokens < 1 ||
      request.prompt_tokens > kMaxLength || request.output_tokens > kMaxLength) {
    return Fault(number, "lengths must be from 1 to 16777216");
  }
  request.arrival = NanosOfSeconds(arrival_s);
  return request;
}

}  // namespace

Trace PoissonTrace(const TraceOptions& options) {
  return MakeTrace(options,
                   [](const LengthModel& model, SimRandom& random) { return model.Draw(random); });
}

Trace OfflineTrace(const TraceOptions& options, int32_t num_requests) {
  const LengthModel model(options.lengths);
  Sources sources(options.seed);
  Trace trace;
  for (int32_t i = 0; i < num_requests; ++i) {
    const Lengths lengths = model.Draw(sources.lengths);
    trace.requests.push_back(
        {.prompt_tokens = lengths.prompt_tokens, .output_tokens = lengths.output_tokens});
  }
  return trace;
}

Trace SharedPrefixTrace(const TraceOptions& options, int32_t prefix_tokens) {
  Trace trace = PoissonTrace(options);
  trace.shared_prefix_tokens = prefix_tokens;
  for (SimRequest& request : trace.requests) {
    request.prompt_tokens += prefix_tokens;
  }
  return trace;
}

Trace ChatTrace(const TraceOptions& options) { return MakeTrace(options, DrawChatTurn); }

absl::StatusOr<Trace> ParseTrace(std::string_view text) {
  Trace trace;
  size_t number = 0;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (line.empty() || line[0] == '#' || (number == 1 && line[0] == 'a')) {
      continue;
    }
    absl::StatusOr<SimRequest> request = ParseLine(line, number);
    if (!request.ok()) {
      return request.status();
    }
    if (!trace.requests.empty() && request->arrival < trace.requests.back().arrival) {
      return Fault(number, "arrival_s must not be below that of the previous line");
    }
    trace.requests.push_back(*request);
  }
  if (trace.requests.empty()) {
    return absl::InvalidArgumentError("the trace holds no requests");
  }
  return trace;
}

absl::StatusOr<Trace> ReadTraceFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read, or is empty"));
  }
  absl::StatusOr<Trace> trace = ParseTrace(text.str());
  if (!trace.ok()) {
    return absl::Status(trace.status().code(),
                        absl::StrCat(path, ": ", std::string(trace.status().message())));
  }
  return trace;
}

}  // namespace quire
