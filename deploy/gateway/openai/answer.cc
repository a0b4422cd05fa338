#include "deploy/gateway/openai/answer.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

template <typename T>
void MoveToEnd(std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void ChoicePart::Append(ChoicePart part) {
  index = part.index;
  prompt = part.prompt;
  absl::StrAppend(&text, part.text);
  MoveToEnd(part.token_ids, token_ids);
  MoveToEnd(part.scored_tokens, scored_tokens);
  if (part.has_ended()) {
    finish_reason = part.finish_reason;
    matched_stop = std::move(part.matched_stop);
    stop_token = part.stop_token;
  }
}

Answer::Answer(const AnswerOptions& options, bool echoes_tokens)
    : options_(options),
      echoes_tokens_(echoes_tokens),
      prompts_(options.prompts.size()),
      choices_(options.prompts.size() * static_cast<size_t>(options.num_choices_per_prompt)) {}

std::optional<ChoicePart> Answer::Take(int32_t prompt, const v1::GenerateResponse& message) {
  PromptState& state = prompts_[prompt];
  if (message.has_started()) {
    state.has_started = true;
    state.num_tokens = message.started().num_prompt_tokens();
    fingerprint_ = message.started().determinism_fingerprint();
  }
  for (const v1::TokenLogprobs& logprobs : message.prompt_logprobs().logprobs()) {
    state.logprobs.push_back(logprobs);
  }
  if (!message.has_chunk() && !message.has_finished()) {
    return std::nullopt;
  }
  const int32_t sequence =
      message.has_chunk() ? message.chunk().index() : message.finished().index();
  if (sequence < 0 || sequence >= options_.num_choices_per_prompt) {
    return std::nullopt;
  }
  ChoicePart part{.index = prompt * options_.num_choices_per_prompt + sequence, .prompt = prompt};
  BeginChoice(part);
  if (message.has_chunk()) {
    AddChunk(message.chunk(), part);
  }
  if (message.has_finished()) {
    AddEnd(message.finished(), part);
  }
  return part;
}

void Answer::BeginChoice(ChoicePart& part) {
  ChoiceState& choice = choices_[part.index];
  part.is_first = !std::exchange(choice.has_begun, true);
  if (!part.is_first || !options_.echo) {
    return;
  }
  part.text = options_.prompts[part.prompt].text;
  if (echoes_tokens_ && options_.num_top_logprobs.has_value()) {
    part.scored_tokens = ScoredPrompt(part.prompt);
  }
}

void Answer::AddChunk(const v1::Chunk& chunk, ChoicePart& part) {
  if (options_.omits_output) {
    return;
  }
  ChoiceState& choice = choices_[part.index];
  absl::StrAppend(&part.text, chunk.text());
  part.token_ids.assign(chunk.token_ids().begin(), chunk.token_ids().end());
  choice.num_tokens += chunk.token_ids_size();
  if (!part.token_ids.empty()) {
    choice.last_token = part.token_ids.back();
  }
  if (!options_.num_top_logprobs.has_value()) {
    return;
  }
  for (int i = 0; i < chunk.token_ids_size(); ++i) {
    ScoredToken& token = part.scored_tokens.emplace_back();
    token.id = chunk.token_ids(i);
    if (i < chunk.logprobs_size()) {
      token.logprobs = chunk.logprobs(i);
    }
  }
}

void Answer::AddEnd(const v1::Finished& finished, ChoicePart& part) {
  prompts_[part.prompt].num_cached_tokens = finished.num_cached_prompt_tokens();
  ChoiceState& choice = choices_[part.index];
  num_ended_ += std::exchange(choice.has_ended, true) ? 0 : 1;
  if (options_.omits_output) {
    part.finish_reason = v1::FINISH_REASON_LENGTH;
    return;
  }
  absl::StrAppend(&part.text, finished.text());
  part.finish_reason = finished.reason();
  part.matched_stop = finished.matched_stop();
  const auto& stops = options_.stop_token_ids;
  if (finished.reason() == v1::FINISH_REASON_STOP && part.matched_stop.empty() &&
      std::ranges::find(stops, choice.last_token) != stops.end()) {
    part.stop_token = choice.last_token;
  }
}

int64_t Answer::num_prompt_tokens() const {
  int64_t sum = 0;
  for (const PromptState& prompt : prompts_) {
    sum += prompt.num_tokens;
  }
  return sum;
}

int64_t Answer::num_cached_prompt_tokens() const {
  int64_t sum = 0;
  for (const PromptState& prompt : prompts_) {
    sum += prompt.num_cached_tokens;
  }
  return sum;
}

int64_t Answer::num_output_tokens() const {
  int64_t sum = 0;
  for (const ChoiceState& choice : choices_) {
    sum += choice.num_tokens;
  }
  return sum;
}

std::vector<ScoredToken> Answer::ScoredPrompt(int32_t prompt) const {
  const std::vector<int32_t>& ids = options_.prompts[prompt].token_ids;
  const std::vector<v1::TokenLogprobs>& logprobs = prompts_[prompt].logprobs;
  std::vector<ScoredToken> tokens(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    tokens[i].id = ids[i];
    if (i > 0 && i <= logprobs.size()) {
      tokens[i].logprobs = logprobs[i - 1];
    }
  }
  return tokens;
}

}  // namespace quire
