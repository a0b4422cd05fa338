#include "tests/scheduler/core/overtaking_audit.h"

#include <algorithm>

#include "common/base/math.h"

namespace quire {
namespace {

constexpr int64_t kTimesLonger = 4;

std::string Fault(uint64_t id, const std::string& what) {
  return "request " + std::to_string(id) + " passes " + what;
}

// Blocks for all tokens of a request that does not run.
int64_t NumBlocks(const RequestModel& model, int32_t block_size) {
  int64_t num_blocks = 0;
  for (const SequenceModel& sequence : model.sequences) {
    num_blocks += sequence.is_finished
                      ? 0
                      : DivCeil(static_cast<int64_t>(sequence.token_ids.size()), block_size);
  }
  return num_blocks;
}

int64_t NumLive(const RequestModel& model) {
  if (model.is_beam_search()) {
    return model.request.group_size();
  }
  return std::count_if(model.sequences.begin(), model.sequences.end(), [](const auto& sequence) {
    return !sequence.is_finished;
  });
}

}  // namespace

OvertakingAudit::OvertakingAudit(const CoreConfig& config, const StepLimits& limits)
    : config_(config), limits_(limits), known_(static_cast<size_t>(limits.max_sequences)) {}

std::string OvertakingAudit::OnPlan(const StepPlan& plan,
                                    const RequestModels& requests,
                                    const CoreStats& stats) {
  EndStep();
  const std::set<uint64_t> started = Follow(plan, requests);
  had_suspect_ = had_suspect_ || stats.num_suspects > 0;
  if (config_.scheduling_policy != SchedulingPolicyKind::kFcfs || had_suspect_) {
    return "";
  }
  const uint64_t oldest = OldestToStart(requests);
  const std::set<uint64_t> cut = Cut(requests);
  std::string fault;
  for (uint64_t id : started) {
    const auto passer = requests.find(id);
    if (oldest < id && passer != requests.end() && fault.empty()) {
      fault = CheckPasser(passer->second, cut, requests);
      has_passed_.insert(id);
    }
  }
  fault = fault.empty() ? CheckShare(cut) : fault;
  const bool has_passer = !started.empty() && has_passed_.count(*started.rbegin()) > 0;
  return fault.empty() && has_passer ? CheckRoom(*started.rbegin(), requests, stats) : fault;
}

uint64_t OvertakingAudit::OldestToStart(const RequestModels& requests) const {
  const auto oldest = std::find_if(requests.begin(), requests.end(), [this](const auto& entry) {
    return !entry.second.is_finished() && !entry.second.has_computed &&
           has_started_.count(entry.first) == 0;
  });
  return oldest == requests.end() ? UINT64_MAX : oldest->first;
}

bool OvertakingAudit::IsPassing() const {
  return std::any_of(known_.begin(), known_.end(), [this](const std::optional<Known>& known) {
    return known.has_value() && has_passed_.count(known->id) > 0 &&
           known->num_left() + known->num_in_step > 1;
  });
}

// Ends the plan before: its slices are computed. A sequence without tokens left has sampled one
// more token.
void OvertakingAudit::EndStep() {
  for (std::optional<Known>& known : known_) {
    if (known.has_value() && known->num_in_step > 0) {
      known->is_new = false;
      known->num_in_step = 0;
      known->num_known += known->num_left() == 0 ? 1 : 0;
    }
  }
}

std::set<uint64_t> OvertakingAudit::Follow(const StepPlan& plan, const RequestModels& requests) {
  std::set<uint64_t> started;
  // A preempted request loses its mark: it starts in its turn, unless it overtakes again.
  std::set<uint64_t> running;
  for (SequenceHandle handle : plan.releases) {
    known_[handle].reset();
  }
  for (const std::optional<Known>& known : known_) {
    running.insert(known.has_value() ? known->id : 0);
  }
  std::erase_if(has_passed_, [&running](uint64_t id) { return running.count(id) == 0; });
  for (const SequenceIntroduction& introduction : plan.introductions) {
    const uint64_t id = introduction.sampling.seed;
    known_[introduction.handle] =
        Known{.id = id,
              .num_known = static_cast<int32_t>(introduction.token_ids.size()),
              .num_computed = introduction.num_computed_tokens,
              .is_new = true,
              .is_again = requests.count(id) > 0 && requests.at(id).has_computed};
    const bool is_first = has_started_.insert(id).second;
    if (is_first) {
      started.insert(id);
    } else if (running.count(id) == 0 && OldestToStart(requests) < id) {
      has_passed_.insert(id);
    }
  }
  for (const SequenceSlice& slice : plan.slices) {
    known_[slice.handle]->num_computed += slice.num_tokens;
    known_[slice.handle]->num_in_step = slice.num_tokens;
  }
  return started;
}

std::set<uint64_t> OvertakingAudit::Cut(const RequestModels& requests) const {
  std::set<uint64_t> cut;
  for (const std::optional<Known>& known : known_) {
    if (known.has_value() && known->num_in_step > 0 && has_passed_.count(known->id) == 0 &&
        requests.count(known->id) > 0) {
      // The worker may not know all sequences of a group yet.
      const bool is_one = requests.at(known->id).request.group_size() == 1;
      const bool is_prompt = known->num_left() + known->num_in_step > 1;
      if (is_one ? known->num_left() > 0 && !known->is_new : is_prompt) {
        cut.insert(known->id);
      }
    }
  }
  return cut;
}

int64_t OvertakingAudit::NumLeftBefore(uint64_t id) const {
  int64_t num_left = 0;
  for (const std::optional<Known>& known : known_) {
    if (known.has_value() && known->id == id) {
      num_left += known->num_left() + known->num_in_step;
    }
  }
  return num_left;
}

std::string OvertakingAudit::CheckPasser(const RequestModel& passer,
                                         const std::set<uint64_t>& cut,
                                         const RequestModels& requests) const {
  const uint64_t id = passer.request.id.value();
  const auto num_tokens = static_cast<int64_t>(passer.request.prompt_token_ids.size());
  const auto is_much_longer = [&](uint64_t other) {
    return other < id && (requests.at(other).request.group_size() > 1 ||
                          kTimesLonger * num_tokens <= NumLeftBefore(other));
  };
  return std::any_of(cut.begin(), cut.end(), is_much_longer)
             ? ""
             : Fault(id, "others, and no prompt is cut that is four times as long");
}

std::string OvertakingAudit::CheckShare(const std::set<uint64_t>& cut) const {
  // Under kAuto a recomputed request may get fewer tokens than it has left.
  const bool is_auto = config_.preemption_mode == PreemptionMode::kAuto;
  std::optional<uint64_t> first_cut;  // for sure: it has tokens left
  for (const std::optional<Known>& known : known_) {
    if (known.has_value() && cut.count(known->id) > 0 && known->num_in_step > 0 &&
        known->num_left() > 0 && !known->is_new && !(is_auto && known->is_again) &&
        known->id < first_cut.value_or(UINT64_MAX)) {
      first_cut = known->id;
    }
  }
  int64_t num_passing = 0;
  int64_t num_cut = 0;
  for (const std::optional<Known>& known : known_) {
    if (known.has_value() && first_cut.has_value()) {
      const bool is_prompt = known->num_left() + known->num_in_step > 1;
      const bool is_passing = has_passed_.count(known->id) > 0 && known->id > *first_cut;
      num_passing += is_prompt && is_passing ? known->num_in_step : 0;
      num_cut += cut.count(known->id) > 0 ? known->num_in_step : 0;
    }
  }
  return num_passing > num_cut ? "those that pass get more of a step than whom they pass" : "";
}

std::string OvertakingAudit::CheckRoom(uint64_t newest_passer,
                                       const RequestModels& requests,
                                       const CoreStats& stats) const {
  if (limits_.sliding_window > 0) {
    return "";  // blocks come back meanwhile
  }
  int64_t num_blocks = 0;
  int64_t num_sequences = 0;
  std::set<uint64_t> running;
  for (const std::optional<Known>& known : known_) {
    if (known.has_value()) {
      running.insert(known->id);
      num_blocks += known->num_left() > 1
                        ? DivCeil(known->num_known, limits_.block_size_tokens) -
                              DivCeil(known->num_computed, limits_.block_size_tokens)
                        : 0;
    }
  }
  for (const auto& [id, model] : requests) {
    if (id < newest_passer && !model.is_finished() && running.count(id) == 0) {
      num_blocks += NumBlocks(model, limits_.block_size_tokens);
      num_sequences += NumLive(model);
    }
  }
  if (num_blocks > stats.num_free_blocks) {
    return Fault(newest_passer, "requests that have no room any more");
  }
  const auto num_known = static_cast<int64_t>(std::count_if(
      known_.begin(), known_.end(), [](const auto& known) { return known.has_value(); }));
  return num_known + num_sequences > limits_.max_sequences
             ? Fault(newest_passer, "requests that have no handles any more")
             : "";
}

}  // namespace quire
