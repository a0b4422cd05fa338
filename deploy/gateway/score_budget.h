// ScoreBudget bounds the log-probabilities of answers that are not streamed. Such an answer holds
// its log-probabilities until its end. Each of them takes some 300 bytes until it is JSON, so
// without a bound one small request could ask for gigabytes. HttpServer bounds the finished JSON.
// ScoreCharge is one answer's share of the budget.
//
// Thread safety: ScoreBudget: any thread; ScoreCharge: one caller at a time.
#ifndef QUIRE_DEPLOY_GATEWAY_SCORE_BUDGET_H_
#define QUIRE_DEPLOY_GATEWAY_SCORE_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <utility>

namespace quire {

class ScoreBudget {
 public:
  // Bounds the log-probabilities of one answer that is not streamed. At this bound they are 25 MiB
  // of JSON.
  static constexpr int64_t kMaxOfAnswer = 512 << 10;
  // Bounds the prompts' log-probabilities in one streamed answer. At this bound, their events take
  // 0.4 s on the thread that makes the events of all streams.
  static constexpr int64_t kMaxOfEvents = 128 << 10;
  // Bounds the log-probabilities of all answers that are not streamed, together.
  static constexpr int64_t kMaxOfAll = 2 << 20;

  // Returns false, and charges nothing, if all answers together would hold more than kMaxOfAll.
  bool Charge(int64_t num_scores) {
    if (num_held_.fetch_add(num_scores) + num_scores <= kMaxOfAll) {
      return true;
    }
    num_held_ -= num_scores;
    return false;
  }
  void Release(int64_t num_scores) { num_held_ -= num_scores; }

 private:
  std::atomic<int64_t> num_held_ = 0;
};

class ScoreCharge {
 public:
  // The budget must outlive this object.
  explicit ScoreCharge(ScoreBudget& budget) : budget_(budget) {}
  ~ScoreCharge() { Release(); }
  ScoreCharge(const ScoreCharge&) = delete;
  ScoreCharge& operator=(const ScoreCharge&) = delete;

  // Returns false, and releases the whole share, if all answers together would hold more than
  // kMaxOfAll. If a failed answer kept its share until its destruction, other answers would fail as
  // well.
  bool Add(int64_t num_scores) {
    if (!budget_.Charge(num_scores)) {
      Release();
      return false;
    }
    num_scores_ += num_scores;
    return true;
  }
  void Release() { budget_.Release(std::exchange(num_scores_, 0)); }

  int64_t num_scores() const { return num_scores_; }

 private:
  ScoreBudget& budget_;
  int64_t num_scores_ = 0;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_SCORE_BUDGET_H_
