#include "scheduler/sim/window_run.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

class WindowRun {
 public:
  WindowRun(const WindowRunConfig& config, const std::vector<SimRequest>& requests)
      : config_(config),
        requests_(requests),
        shape_(ShapeOfWindows(
            config.platform, config.layout, config.page_bytes, config.block_size_tokens)),
        cost_(config.platform, kContiguous),
        mapper_(shape_,
                config.maps_at_no_cost ? VmmCost{} : CostOfPage(config.page_bytes),
                config.batch,
                PoolGroups(),
                config.mapper),
        running_(static_cast<size_t>(config.batch)),
        tokens_(static_cast<size_t>(config.batch)) {}

  absl::StatusOr<WindowRunResult> Serve() {
    while (next_ < requests_.size() || num_running_ > 0) {
      QUIRE_RETURN_IF_ERROR(FillBatch());
      QUIRE_RETURN_IF_ERROR(Decode());
    }
    result_.counts = mapper_.counts();
    return result_;
  }

 private:
  int64_t PoolGroups() const {
    const double bytes = config_.platform.kv_pool_bytes / config_.platform.num_gpus;
    return static_cast<int64_t>(bytes) / shape_.group_bytes();
  }

  absl::Status FillBatch() {
    while (next_ < requests_.size() && num_running_ < config_.batch) {
      QUIRE_RETURN_IF_ERROR(Prefill(requests_[next_++]));
    }
    return absl::OkStatus();
  }

  absl::Status Prefill(const SimRequest& request) {
    const auto slot = static_cast<size_t>(mapper_.Begin(request.prompt_tokens));
    running_[slot] = request;
    tokens_[slot] = request.prompt_tokens;
    ++num_running_;
    QUIRE_RETURN_IF_ERROR(Step(
        {.num_tokens = request.prompt_tokens,
         .num_context_tokens = request.prompt_tokens,
         .num_sequences = 1,
         .num_attended_tokens = NumAttendedTokens(request.prompt_tokens, request.prompt_tokens)},
        &result_.prefill));
    EndIfDone(slot);
    return absl::OkStatus();
  }

  // Computes one token for each running request, and stores K and V of the request's previous
  // token.
  absl::Status Decode() {
    StepWork work;
    for (size_t slot = 0; slot < running_.size(); ++slot) {
      if (running_[slot].has_value()) {
        ++tokens_[slot];
        ++work.num_sequences;
        work.num_context_tokens += tokens_[slot];
      }
    }
    if (work.num_sequences == 0) {
      return absl::OkStatus();
    }
    work.num_tokens = work.num_sequences;
    work.num_attended_tokens = work.num_context_tokens;
    QUIRE_RETURN_IF_ERROR(Step(work, &result_.decode));
    for (size_t slot = 0; slot < running_.size(); ++slot) {
      EndIfDone(slot);
    }
    return absl::OkStatus();
  }

  // Ends the slot's request if all tokens of the request are computed. tokens_ is then one below
  // prompt plus output, because K and V of the last output token are never stored.
  void EndIfDone(size_t slot) {
    if (running_[slot].has_value() &&
        tokens_[slot] + 1 >= running_[slot]->prompt_tokens + running_[slot]->output_tokens) {
      mapper_.End(static_cast<int32_t>(slot));
      running_[slot].reset();
      --num_running_;
    }
  }

  absl::Status Step(const StepWork& work, WindowSteps* steps) {
    const int64_t pages_before = NumPagesMapped();
    const std::optional<Instant> begin = mapper_.BeginStep(now_, tokens_);
    if (!begin.has_value()) {
      return absl::ResourceExhaustedError("the KV pool is too small for the running requests");
    }
    const Instant end =
        *begin + std::llround(cost_.StepSeconds(work) * static_cast<double>(kNanosPerSecond));
    steps->durations.push_back(end - now_);
    steps->waits.push_back(*begin - now_);
    steps->num_tokens += work.num_tokens;
    steps->num_pages_mapped += NumPagesMapped() - pages_before;
    steps->total += end - now_;
    steps->waited += *begin - now_;
    now_ = end;
    result_.most_mappings = std::max(result_.most_mappings, mapper_.num_mappings());
    MeasureWaste();
    return absl::OkStatus();
  }

  void MeasureWaste() {
    for (size_t slot = 0; slot < running_.size(); ++slot) {
      if (running_[slot].has_value()) {
        const int64_t mapped =
            mapper_.num_mapped_groups(static_cast<int32_t>(slot)) * shape_.group_bytes();
        const int64_t wasted = mapped - tokens_[slot] * shape_.bytes_per_token;
        result_.most_wasted_bytes =
            std::max(result_.most_wasted_bytes, wasted * config_.platform.num_gpus);
      }
    }
  }

  int64_t NumPagesMapped() const {
    return mapper_.counts().num_pages_on_path + mapper_.counts().num_pages_ahead;
  }

  WindowRunConfig config_;
  const std::vector<SimRequest>& requests_;
  WindowShape shape_;
  CostModel cost_;
  PageMapper mapper_;
  std::vector<std::optional<SimRequest>> running_;  // request of each slot
  std::vector<int64_t> tokens_;                     // number of stored tokens of each slot
  int32_t num_running_ = 0;
  size_t next_ = 0;
  Instant now_ = 0;
  WindowRunResult result_;
};

}  // namespace

absl::StatusOr<WindowRunResult> ServeInWindows(const WindowRunConfig& config,
                                               const std::vector<SimRequest>& requests) {
  QUIRE_CHECK(config.batch >= 1);
  return WindowRun(config, requests).Serve();
}

}  // namespace quire
