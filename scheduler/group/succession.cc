#include "scheduler/group/succession.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

// Bounds how far a holder's incarnation may be above this scheduler's. Incarnations are wall-clock
// nanoseconds, or slightly more, and no two clocks differ by a year.
constexpr uint64_t kMaxLead = kNanosPerYear;
// own_part_ is a scheduler's start time modulo this number (1 ms). Even with synchronized clocks,
// two schedulers hardly ever have the same own_part_.
constexpr uint64_t kOwnParts = kNanosPerMilli;
// Upper bound on the delay of a report, from the worker's reading of its clock to the arrival here.
constexpr int64_t kReportDelayNs = 200 * kNanosPerMilli;

}  // namespace

Succession::Succession(int32_t num_ranks, uint64_t incarnation, const Settings& settings)
    : patience_ns_(settings.patience_ns),
      max_(incarnation + kMaxLead),
      own_part_(incarnation % kOwnParts),
      stands_by_(settings.stands_by),
      incarnation_(incarnation),
      by_rank_(static_cast<size_t>(num_ranks)) {}

void Succession::OnReport(int32_t rank,
                          uint64_t holder_incarnation,
                          int64_t silence_ns,
                          Instant now) {
  Worker& worker = by_rank_[static_cast<size_t>(rank)];
  if (std::exchange(worker.named, holder_incarnation) != holder_incarnation) {
    worker.named_since = now;
  }
  worker.holder = Holder{holder_incarnation, silence_ns};
  worker.reported_at = now;
  if (now - outwaited_at_ >= patience_ns_) {
    outwaited_ = 0;  // the workers that were dialed after kRename have had time to report
  }
  has_asked_ = has_asked_ && !AreWorkersReplaced();
  has_waited_ = has_waited_ || WaitsFor().has_value();
}

void Succession::Forget(int32_t rank) {
  Worker& worker = by_rank_[static_cast<size_t>(rank)];
  worker.holder.reset();
  worker.is_asked = false;
  all_are_there_since_.reset();
}

bool Succession::IsOvertaken() const {
  const std::optional<Holder> other = Other();
  return has_asked_ && other.has_value() && other->incarnation > incarnation_;
}

Succession::Holder Succession::NewestHolder() const {
  Holder newest;
  for (const Worker& worker : by_rank_) {
    const Holder holder = worker.holder.value_or(Holder());
    if (holder.incarnation < newest.incarnation) {
      continue;
    }
    const int64_t silence_ns = holder.incarnation > newest.incarnation ? 0 : newest.silence_ns;
    newest = {holder.incarnation, std::max(silence_ns, holder.silence_ns)};
  }
  return newest;
}

// If this scheduler has asked for the workers, ignores the previous holder, which late reports may
// still name.
std::optional<Succession::Holder> Succession::Other() const {
  const Holder newest = NewestHolder();
  const bool is_own = newest.incarnation == last_asked_as_;
  const bool is_before_own = has_asked_ && newest.incarnation < incarnation_;
  return is_own || is_before_own ? std::nullopt : std::optional(newest);
}

bool Succession::HaveAllReported() const {
  return std::ranges::all_of(by_rank_,
                             [](const Worker& worker) { return worker.holder.has_value(); });
}

bool Succession::AreWorkersReplaced() const {
  const bool is_asked =
      std::ranges::any_of(by_rank_, [](const Worker& worker) { return worker.is_asked; });
  const Holder newest = NewestHolder();
  return HaveAllReported() && !is_asked && newest.incarnation != 0 &&
         newest.incarnation < incarnation_ && newest.silence_ns < patience_ns_;
}

std::optional<uint64_t> Succession::WaitsFor() const {
  const std::optional<Holder> other = Other();
  if (has_asked_ || !other.has_value() || other->incarnation == 0 ||
      other->silence_ns >= patience_ns_ || (!stands_by_ && other->incarnation < incarnation_)) {
    return std::nullopt;
  }
  // After kRename all workers are dialed anew. The first reports may show a shorter silence than
  // later reports, or name an older holder. So until all workers have reported, this scheduler must
  // not wait again for a holder that it has already waited for (outwaited_).
  const bool is_outwaited = other->incarnation <= outwaited_ && !HaveAllReported();
  return is_outwaited ? std::nullopt : std::optional(other->incarnation);
}

bool Succession::DoesOtherLive() const {
  const std::optional<Holder> other = Other();
  return other.has_value() && std::ranges::any_of(by_rank_, [&other](const Worker& worker) {
           return worker.holder.has_value() && worker.holder->incarnation == other->incarnation &&
                  worker.holder->silence_ns + kReportDelayNs <
                      worker.reported_at - worker.named_since;
         });
}

Succession::Verdict Succession::Decide(Instant now) {
  all_are_there_since_ = all_are_there_since_.value_or(now);
  if (WaitsFor().has_value()) {
    outwaited_ = 0;
    return Verdict::kWait;
  }
  const bool is_in_turn = now - *all_are_there_since_ >= patience_ns_;
  if (has_waited_ && !is_in_turn) {
    return Verdict::kWait;
  }
  has_waited_ = false;
  const std::optional<Holder> other = Other();
  outwaited_ = other.value_or(Holder()).incarnation;
  outwaited_at_ = now;
  if (other.has_value() && other->incarnation > incarnation_) {
    TakeNumberAbove(other->incarnation);
    return Verdict::kRename;
  }
  for (Worker& worker : by_rank_) {
    worker.is_asked = true;
  }
  has_asked_ = true;
  stands_by_ = true;
  last_asked_as_ = incarnation_;
  return Verdict::kAsk;
}

void Succession::LetGo() {
  has_asked_ = false;
  TakeNumberAbove(incarnation_);
}

void Succession::TakeNumberAbove(uint64_t incarnation) {
  incarnation_ = std::max(incarnation, incarnation_) + 1 + own_part_;
}

}  // namespace quire
