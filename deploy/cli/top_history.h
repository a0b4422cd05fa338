// TopHistory is what `quire top` remembers of a server: its last answer, and counts of those
// before, which make rates. Nothing that an answer says is believed: numbers may be any.
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

// What counts since the start of a server, or the difference between two moments. Times in seconds.
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

  // Begins anew where counts have fallen: it is another process.
  void Add(v1::GetStateResponse state);

  const std::optional<v1::GetStateResponse>& latest() const { return latest_; }

  // From the answer before the last one to that one, and over so many seconds at least, if there
  // are. All 0 before the second answer.
  TopCounts Since(double seconds) const;

  // A second's worth between each two of the last answers, oldest first, at most max_rates.
  std::vector<double> Rates(double TopCounts::*count, size_t max_rates) const;

 private:
  std::optional<v1::GetStateResponse> latest_;
  std::deque<TopCounts> samples_;
};

// part / whole, 0 without a whole; never less than 0, and a number.
double ShareOf(double part, double whole);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_TOP_HISTORY_H_
