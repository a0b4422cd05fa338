// RunLoad sends a list of requests to a server and records when each token arrived.
//
// Open loop: requests arrive at a rate, with gamma-distributed gaps (burstiness 1 is a Poisson
// process). Closed loop: the rate is infinite, and max_concurrency bounds the requests that run at
// the same time. If both a rate and max_concurrency are given, the loop is open but bounded.
//
// Thread safety: RunLoad blocks its caller; one caller at a time.
#ifndef QUIRE_DEPLOY_CLI_LOAD_GENERATOR_H_
#define QUIRE_DEPLOY_CLI_LOAD_GENERATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/status/status.h"

#include "common/base/clock.h"

namespace quire {

struct LoadOptions {
  double requests_per_second = std::numeric_limits<double>::infinity();
  double burstiness = 1.0;      // shape parameter of the gaps, > 0; smaller is burstier
  int32_t max_concurrency = 0;  // 0: no bound
  uint64_t seed = 0;
  int64_t timeout_ms = 0;  // deadline of each request, also sent to the server; 0: none
};

// The outcome of one request. Times are read from SteadyNow() of this process.
struct RequestRecord {
  absl::Status status;
  Instant start = 0;
  Instant end = 0;
  std::vector<Instant> arrivals;  // times of the messages that brought tokens
  int32_t num_prompt_tokens = 0;
  int32_t num_output_tokens = 0;
  std::vector<int32_t> output_token_ids;  // in order of arrival; empty if the server sends none
};

// Sends requests to one server, many at once.
class LoadBackend {
 public:
  virtual ~LoadBackend() = default;
  // Sends request `index`. Fills the record, then calls `done`, from any thread. REQUIRES: each
  // index is started at most once.
  virtual void Start(size_t index, RequestRecord& record, std::function<void()> done) = 0;
};

// Returns one record for each request, in order.
std::vector<RequestRecord> RunLoad(LoadBackend& backend,
                                   size_t num_requests,
                                   const LoadOptions& options);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_LOAD_GENERATOR_H_
