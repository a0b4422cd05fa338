// TopHistory holds a server's last answer and the counts of earlier answers, from which `quire top`
// computes rates. Answers are not trusted: they may contain any numbers.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_DEPLOY_CLI_TOP_HISTORY_H_
#define QUIRE_DEPLOY_CLI_TOP_HISTORY_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "proto/v1/admin.pb.h"

namespace quire {

// Counters since the start of a server, or the growth of the counters between two moments. Times in
// seconds.
struct TopCounts {
  double seconds = 0;  // by the server's clock
  double prompt_tokens = 0;
  double generated_tokens = 0;
  double queried_tokens = 0;
  double hit_tokens = 0;
  double steps = 0;
  double plan = 0;
  double send = 0;
  double wait = 0;
  double apply = 0;
  double worker_build = 0;
  double worker_forward = 0;
  double worker_sample = 0;
};

class TopHistory {
 public:
  static constexpr size_t kMaxSamples = 300;

  // Adds an answer. If its counters are lower than those of the last answer, the server was started
  // again, so earlier counts are dropped.
  void Add(v1::GetStateResponse state);

  const std::optional<v1::GetStateResponse>& latest() const { return latest_; }

  // Returns the growth of the counters from an earlier answer to the last one. The earlier answer
  // is the newest one that is at least `seconds` older than the last, or else the oldest. Returns
  // counts of 0 if there is only one answer, or none.
  TopCounts Since(double seconds) const;

  // Returns the growth per second between successive answers, oldest first: the newest max_rates
  // values at most.
  std::vector<double> Rates(double TopCounts::*count, size_t max_rates) const;

 private:
  std::optional<v1::GetStateResponse> latest_;
  std::deque<TopCounts> samples_;
};

// Returns part / whole; 0 if whole is not positive, or the quotient is negative or not finite.
double ShareOf(double part, double whole);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_TOP_HISTORY_H_
