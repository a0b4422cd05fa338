#include "tests/support/fake_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

constexpr uint64_t kStart = 0x243F6A8885A308D3ULL;

uint64_t Mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x9FB21C651E98DF25ULL;
  return state ^ (state >> 29);
}

// Returns the word that the KV cache stores for a token. Like a layer's K and V, the word depends
// on every token that this token attended to.
uint64_t CellOf(TokenId token_id, int32_t position, uint64_t attended) {
  return Mix(Mix(attended, static_cast<uint64_t>(token_id)), static_cast<uint64_t>(position));
}

TokenId Sample(uint64_t attended, uint64_t seed, int32_t sequence_index, int32_t vocab_size) {
  uint64_t word = Mix(Mix(attended, seed), static_cast<uint64_t>(sequence_index));
  return static_cast<TokenId>(word % static_cast<uint64_t>(vocab_size));
}

// Returns candidates whose logprobs decrease by steps that the hash chooses, so that beams of equal
// length compete.
std::vector<TokenLogprob> Candidates(uint64_t attended,
                                     int32_t num_candidates,
                                     int32_t vocab_size) {
  std::vector<TokenLogprob> candidates;
  uint64_t word = Mix(attended, kStart);
  float logprob = 0.0F;
  const auto first = static_cast<int32_t>(word % static_cast<uint64_t>(vocab_size));
  for (int32_t i = 0; i < std::min(num_candidates, vocab_size); ++i) {
    word = Mix(word, static_cast<uint64_t>(i));
    logprob -= static_cast<float>(1 + word % 63) / 32.0F;
    candidates.push_back({.token_id = (first + i) % vocab_size, .logprob = logprob});
  }
  return candidates;
}

// Adds the log-probability of the token that follows the attended ones, and the likeliest tokens.
void AddScore(uint64_t attended, TokenId token_id, int32_t vocab_size, PromptLogprobs* prompt) {
  const uint64_t word = Mix(attended, static_cast<uint64_t>(token_id));
  prompt->logprobs.push_back(-static_cast<float>(word % 1009) / 64.0F);
  const std::vector<TokenLogprob> top = Candidates(attended, prompt->num_top, vocab_size);
  prompt->top.insert(prompt->top.end(), top.begin(), top.end());
}

// Returns the oldest position that the token at `position` attends to.
int32_t FirstSeen(int32_t position, int32_t sliding_window) {
  return sliding_window > 0 ? std::max(0, position - sliding_window + 1) : 0;
}

// Returns a hash of the cells that the last token attends to, its own cell included.
uint64_t AttendedOf(std::span<const TokenId> token_ids, int32_t sliding_window) {
  std::vector<uint64_t> cells;
  uint64_t attended = kStart;
  for (TokenId token_id : token_ids) {
    const auto position = static_cast<int32_t>(cells.size());
    if (sliding_window > 0) {
      attended = kStart;
      for (int32_t i = FirstSeen(position, sliding_window); i < position; ++i) {
        attended = Mix(attended, cells[static_cast<size_t>(i)]);
      }
    }
    cells.push_back(CellOf(token_id, position, attended));
    attended = Mix(attended, cells.back());
  }
  return attended;
}

}  // namespace

TokenId ExpectedToken(std::span<const TokenId> token_ids,
                      uint64_t seed,
                      int32_t sequence_index,
                      int32_t vocab_size,
                      int32_t sliding_window) {
  return Sample(AttendedOf(token_ids, sliding_window), seed, sequence_index, vocab_size);
}

std::vector<TokenLogprob> ExpectedCandidates(std::span<const TokenId> token_ids,
                                             int32_t num_candidates,
                                             int32_t vocab_size,
                                             int32_t sliding_window) {
  return Candidates(AttendedOf(token_ids, sliding_window), num_candidates, vocab_size);
}

PromptLogprobs ExpectedPromptLogprobs(std::span<const TokenId> prompt,
                                      int32_t num_top,
                                      int32_t vocab_size,
                                      int32_t sliding_window) {
  PromptLogprobs expected = {.num_top = std::min(num_top, vocab_size)};
  for (size_t i = 1; i < prompt.size(); ++i) {
    AddScore(AttendedOf(prompt.first(i), sliding_window), prompt[i], vocab_size, &expected);
  }
  return expected;
}

FakeWorker::FakeWorker(const StepLimits& limits, int32_t swap_delay_steps, uint64_t salt)
    : limits_(limits),
      checker_(limits),
      swap_delay_steps_(swap_delay_steps),
      salt_(salt),
      sequences_(static_cast<size_t>(limits.max_sequences)),
      cells_(static_cast<size_t>(limits.num_blocks) *
             static_cast<size_t>(limits.block_size_tokens)),
      host_cells_(static_cast<size_t>(limits.num_host_blocks) *
                  static_cast<size_t>(limits.block_size_tokens)),
      writers_(static_cast<size_t>(limits.num_blocks)),
      host_writers_(static_cast<size_t>(limits.num_host_blocks)),
      generations_(static_cast<size_t>(limits.num_host_blocks)) {}

absl::StatusOr<StepResult> FakeWorker::Execute(const StepPlan& plan) {
  const bool is_repeated = plan.header == last_result_.header && last_step_id_ > 0;
  if (is_repeated && DigestOf(plan) == last_result_.plan_digest) {
    return last_result_;
  }
  if (plan.header.step_id != last_step_id_ + 1) {
    return Error(absl::StatusCode::kOutOfRange,
                 "STEP_GAP",
                 absl::StrCat("header.step_id: must be the next (got ",
                              plan.header.step_id,
                              ", expected ",
                              last_step_id_ + 1,
                              ")"));
  }
  QUIRE_RETURN_IF_ERROR(
      checker_.Check(plan, [this](SequenceHandle handle) -> std::optional<KnownSequence> {
        const std::optional<KnownState>& known = sequences_[handle];
        if (!known.has_value()) {
          return std::nullopt;
        }
        return KnownSequence{.num_known_tokens = static_cast<int32_t>(known->token_ids.size()),
                             .num_computed_tokens = known->num_computed_tokens,
                             .block_ids = known->block_ids};
      }));
  QUIRE_RETURN_IF_ERROR(CheckSwaps(plan));
  for (const SequenceSlice& slice : plan.slices) {
    if (!poison_.empty() && IsPoison(plan, slice)) {
      crashed_by_.push_back(slice.handle);
    }
  }
  if (!crashed_by_.empty()) {
    return Error(absl::StatusCode::kUnavailable, "CRASHED", "worker: a poison token killed it");
  }
  last_step_id_ = plan.header.step_id;
  StepResult result{.header = plan.header, .plan_digest = DigestOf(plan)};
  result.failed_swap_ins = TakeSwaps(plan);
  for (const BlockCopy& copy : plan.copies) {
    CopyBlock(copy);
  }
  for (const SequenceIntroduction& introduction : plan.introductions) {
    sequences_[introduction.handle] =
        KnownState{.token_ids = introduction.token_ids,
                   .num_computed_tokens = introduction.num_computed_tokens,
                   .block_ids = introduction.block_ids,
                   .sequence_index = introduction.sequence_index,
                   .seed = introduction.sampling.seed,
                   .num_logprobs = introduction.sampling.num_logprobs,
                   .num_prompt_tokens = introduction.num_prompt_tokens,
                   .num_prompt_logprobs = introduction.sampling.num_prompt_logprobs};
  }
  for (const SequenceSlice& slice : plan.slices) {
    if (auto sampled = ExecuteSlice(slice, result)) {
      result.sampled.push_back(std::move(*sampled));
    }
  }
  for (SequenceHandle handle : plan.releases) {
    sequences_[handle].reset();
  }
  const auto delay = static_cast<uint64_t>(plan.slices.empty() ? 0 : swap_delay_steps_);
  DoSwapsUpTo(last_step_id_ - std::min(delay, last_step_id_));
  result.swaps_done_step_id = swaps_.empty() ? last_step_id_ : swaps_.front().step_id - 1;
  last_result_ = result;
  return result;
}

bool FakeWorker::IsPoison(const StepPlan& plan, const SequenceSlice& slice) const {
  const auto introduction =
      std::find_if(plan.introductions.begin(), plan.introductions.end(), [&](const auto& each) {
        return each.handle == slice.handle;
      });
  const bool is_new = introduction != plan.introductions.end();
  const uint64_t seed = is_new ? introduction->sampling.seed : sequences_[slice.handle]->seed;
  const int32_t begin =
      is_new ? introduction->num_computed_tokens : sequences_[slice.handle]->num_computed_tokens;
  const auto poison = poison_.find(seed);
  return poison != poison_.end() && begin <= poison->second.position &&
         poison->second.position < begin + slice.num_tokens &&
         (slice.num_tokens > 1 || !poison->second.is_harmless_alone);
}

// A block must not be written until its swap-out is reported as done; a host block must not be
// written until its swap-in is reported as done.
absl::Status FakeWorker::CheckSwaps(const StepPlan& plan) const {
  auto busy = [](BlockId id) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "SWAP_UNDER_WAY",
                 absl::StrCat("block: a swap under way still reads it (got ", id, ")"));
  };
  for (const BlockSwapOut& swap : plan.swap_outs) {
    if (IsArrivingFrom(swap.host_block)) {
      return busy(swap.host_block);
    }
  }
  for (const BlockSwapIn& swap : plan.swap_ins) {
    if (IsLeaving(swap.block)) {
      return busy(swap.block);
    }
  }
  for (const BlockCopy& copy : plan.copies) {
    if (IsLeaving(copy.dst)) {
      return busy(copy.dst);
    }
  }
  for (const SequenceSlice& slice : plan.slices) {
    for (BlockId block_id : slice.new_block_ids) {
      if (IsLeaving(block_id)) {
        return busy(block_id);
      }
    }
  }
  return absl::OkStatus();
}

std::vector<BlockId> FakeWorker::TakeSwaps(const StepPlan& plan) {
  std::vector<BlockId> failed;
  for (const BlockSwapOut& swap : plan.swap_outs) {
    generations_[static_cast<size_t>(swap.host_block)] = last_step_id_;
    swaps_.push_back({.block = swap.block,
                      .host_block = swap.host_block,
                      .is_out = true,
                      .step_id = last_step_id_});
  }
  for (const BlockSwapIn& swap : plan.swap_ins) {
    const uint64_t generation = generations_[static_cast<size_t>(swap.host_block)];
    const bool has_failed =
        generation == 0 || generation != swap.generation || failing_.count(swap.host_block) > 0;
    if (has_failed) {
      failed.push_back(swap.block);
    }
    swaps_.push_back({.block = swap.block,
                      .host_block = swap.host_block,
                      .has_failed = has_failed,
                      .step_id = last_step_id_});
  }
  failing_.clear();
  return failed;
}

bool FakeWorker::IsLeaving(BlockId block_id) const {
  return std::any_of(swaps_.begin(), swaps_.end(), [block_id](const SwapUnderWay& under_way) {
    return under_way.is_out && under_way.block == block_id;
  });
}

bool FakeWorker::IsArrivingFrom(HostBlockId host_block) const {
  return std::any_of(swaps_.begin(), swaps_.end(), [host_block](const SwapUnderWay& under_way) {
    return !under_way.is_out && under_way.host_block == host_block;
  });
}

bool FakeWorker::IsKnown(SequenceHandle handle) const {
  return handle < sequences_.size() && sequences_[handle].has_value();
}

int32_t FakeWorker::num_known_sequences() const {
  return static_cast<int32_t>(std::count_if(
      sequences_.begin(), sequences_.end(), [](const auto& known) { return known.has_value(); }));
}

void FakeWorker::SpoilLastSlice(SequenceHandle handle) {
  const KnownState& sequence = *sequences_[handle];
  for (int32_t position = sequence.num_computed_before; position < sequence.num_computed_tokens;
       ++position) {
    const auto index = static_cast<size_t>(position / limits_.block_size_tokens);
    const BlockId block_id = sequence.block_ids[index];
    const auto num_holders =
        std::count_if(sequences_.begin(), sequences_.end(), [&](const auto& known) {
          return known.has_value() && index < known->block_ids.size() &&
                 known->block_ids[index] == block_id;
        });
    if (num_holders == 1) {
      Cell(sequence, position) = ~Cell(sequence, position);
    }
  }
}

void FakeWorker::SpoilBlock(BlockId block_id, uint64_t mask) {
  const auto first = cells_.begin() + int64_t{block_id} * limits_.block_size_tokens;
  std::transform(first, first + limits_.block_size_tokens, first, [mask](uint64_t cell) {
    return cell ^ mask;
  });
}

// Does a swap, after all earlier swaps of the same block or host block, whose results the swap
// uses.
void FakeWorker::Do(size_t index) {
  const SwapUnderWay& under_way = swaps_[index];
  if (under_way.is_done) {
    return;
  }
  for (size_t earlier = 0; earlier < index; ++earlier) {
    const SwapUnderWay& other = swaps_[earlier];
    if (other.block == under_way.block || other.host_block == under_way.host_block) {
      Do(earlier);
    }
  }
  swaps_[index].is_done = true;
  int64_t size = limits_.block_size_tokens;
  auto block = cells_.begin() + under_way.block * size;
  auto host_block = host_cells_.begin() + under_way.host_block * size;
  if (under_way.is_out) {
    std::copy_n(block, size, host_block);
    host_writers_[static_cast<size_t>(under_way.host_block)] = WriterOf(under_way.block);
    return;
  }
  std::copy_n(host_block, size, block);
  writers_[static_cast<size_t>(under_way.block)] =
      host_writers_[static_cast<size_t>(under_way.host_block)];
  if (under_way.has_failed) {  // inverts the words, because stale words may be right by chance
    std::transform(block, block + size, block, [](uint64_t cell) { return ~cell; });
  }
}

void FakeWorker::DoSwapsUpTo(uint64_t step_id) {
  for (size_t index = 0; index < swaps_.size() && swaps_[index].step_id <= step_id; ++index) {
    Do(index);
  }
  while (!swaps_.empty() && swaps_.front().step_id <= step_id) {
    // A swap that is done is removed only here, because CheckSwaps must see it until the swap is
    // reported.
    swaps_.pop_front();
  }
}

void FakeWorker::DoSwapsOf(const std::vector<BlockId>& block_ids) {
  for (size_t index = 0; index < swaps_.size(); ++index) {
    const bool is_wanted =
        !swaps_[index].is_out &&
        std::find(block_ids.begin(), block_ids.end(), swaps_[index].block) != block_ids.end();
    if (is_wanted) {
      Do(index);
    }
  }
}

void FakeWorker::CopyBlock(const BlockCopy& copy) {
  DoSwapsOf({copy.src, copy.dst});
  int64_t size = limits_.block_size_tokens;
  std::copy_n(cells_.begin() + copy.src * size, size, cells_.begin() + copy.dst * size);
  writers_[static_cast<size_t>(copy.dst)] = WriterOf(copy.src);
}

std::optional<SampledToken> FakeWorker::ExecuteSlice(const SequenceSlice& slice,
                                                     StepResult& result) {
  KnownState& sequence = *sequences_[slice.handle];
  sequence.block_ids.insert(
      sequence.block_ids.end(), slice.new_block_ids.begin(), slice.new_block_ids.end());
  if (slice.forced_token_id.has_value()) {
    sequence.token_ids.back() = *slice.forced_token_id;
  }
  DoSwapsOf(sequence.block_ids);
  sequence.num_computed_before = sequence.num_computed_tokens;
  const int32_t vocab_size = limits_.vocab_size;
  PromptLogprobs prompt = {.first_position = sequence.num_computed_tokens + 1,
                           .num_top = std::min(sequence.num_prompt_logprobs, vocab_size)};
  uint64_t attended = Attended(sequence, sequence.num_computed_tokens);
  for (int32_t i = 0; i < slice.num_tokens; ++i) {
    int32_t position = sequence.num_computed_tokens++;
    if (limits_.sliding_window > 0) {
      attended = Attended(sequence, position);
    }
    TokenId token_id = sequence.token_ids[static_cast<size_t>(position)];
    Cell(sequence, position) = CellOf(token_id, position, attended) ^ salt_;
    writers_[static_cast<size_t>(
        sequence.block_ids[static_cast<size_t>(position / limits_.block_size_tokens)])] =
        sequence.seed;
    attended = Mix(attended, Cell(sequence, position) ^ salt_);
    if (sequence.num_prompt_logprobs >= 0 && position + 1 < sequence.num_prompt_tokens) {
      AddScore(
          attended, sequence.token_ids[static_cast<size_t>(position) + 1], vocab_size, &prompt);
    }
  }
  if (prompt.num_tokens() > 0) {
    result.scored.push_back({.handle = slice.handle, .prompt = std::move(prompt)});
  }
  if (sequence.num_computed_tokens < static_cast<int32_t>(sequence.token_ids.size())) {
    return std::nullopt;
  }
  TokenId token_id = Sample(attended, sequence.seed, sequence.sequence_index, limits_.vocab_size);
  sequence.token_ids.push_back(token_id);
  result.row_hash = Mix(result.row_hash, attended);
  return SampledToken{
      .handle = slice.handle,
      .token_id = token_id,
      .top_logprobs = Candidates(attended, sequence.num_logprobs, limits_.vocab_size)};
}

uint64_t FakeWorker::Attended(const KnownState& sequence, int32_t position) {
  uint64_t attended = kStart;
  for (int32_t i = FirstSeen(position, limits_.sliding_window); i < position; ++i) {
    attended = Mix(attended, Cell(sequence, i) ^ salt_);
  }
  return attended;
}

uint64_t& FakeWorker::Cell(const KnownState& sequence, int32_t position) {
  BlockId block_id = sequence.block_ids[static_cast<size_t>(position / limits_.block_size_tokens)];
  int64_t slot =
      int64_t{block_id} * limits_.block_size_tokens + position % limits_.block_size_tokens;
  return cells_[static_cast<size_t>(slot)];
}

}  // namespace quire
