// TopHistory holds a server's last answer, and the counts of earlier ones, from which `quire top`
// computes rates. Answers are not trusted: their numbers may be any.
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

// Counters since the start of a server, or their growth between two moments. Times in seconds.
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

  // Drops earlier counts if counters have fallen, because then the server is another process.
  void Add(v1::GetStateResponse state);

  const std::optional<v1::GetStateResponse>& latest() const { return latest_; }

  // Growth up to the last answer: since the answer before it, or an earlier one so that it covers
  // at least `seconds`, if possible. All 0 before the second answer.
  TopCounts Since(double seconds) const;

  // Growth a second between successive answers, oldest first: the last max_rates of them.
  std::vector<double> Rates(double TopCounts::*count, size_t max_rates) const;

 private:
  std::optional<v1::GetStateResponse> latest_;
  std::deque<TopCounts> samples_;
};

// part / whole, or 0 if that is negative, not finite, or whole is not positive.
double ShareOf(double part, double whole);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_TOP_HISTORY_H_
