#include "scheduler/loop/outbox.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace quire {
namespace {

size_t BytesOf(const SequenceUpdate& update) {
  size_t bytes = update.text.size() + update.token_ids.size() * sizeof(TokenId);
  for (const OutputLogprobs& logprobs : update.logprobs) {
    bytes += sizeof(float) + logprobs.top.size() * sizeof(TokenLogprob);
  }
  if (update.end.has_value()) {
    bytes += update.end->text.size() + update.end->matched_stop.size();
  }
  return bytes;
}

// Returns an upper bound on the bytes of one token in a Chunk (proto/v1/generation.proto): token
// id, text, text end, logprob and top logprobs, each with its protobuf tag and length.
size_t BytesOnWire(const SequenceUpdate& update, size_t token) {
  constexpr size_t kToken = 5 + 5;
  constexpr size_t kLogprobs = 4 + 5;
  constexpr size_t kTopLogprob = 2 + 6 + 5;
  size_t bytes = kToken;
  if (token < update.text_ends.size()) {
    bytes += update.text_ends[token] - (token == 0 ? 0 : update.text_ends[token - 1]);
  }
  if (token < update.logprobs.size()) {
    bytes += kLogprobs + update.logprobs[token].top.size() * kTopLogprob;
  }
  return bytes;
}

// Returns how many tokens of an update fit into one message.
size_t NumTokensInMessage(const SequenceUpdate& update) {
  size_t bytes = 0;
  for (size_t i = 0; i < update.token_ids.size(); ++i) {
    bytes += BytesOnWire(update, i);
    if (i == kMaxTokensPerMessage || (i > 0 && bytes > kMaxMessageBytes)) {
      return i;
    }
  }
  return update.token_ids.size();
}

template <typename T>
void MoveToBack(std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

template <typename T>
std::vector<T> TakeFront(std::vector<T>& from, size_t count) {
  count = std::min(count, from.size());
  const auto end = from.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<T> front(std::make_move_iterator(from.begin()), std::make_move_iterator(end));
  from.erase(from.begin(), end);
  return front;
}

}  // namespace

SequenceUpdate SplitFront(SequenceUpdate& update, size_t num_tokens) {
  SequenceUpdate front;
  front.sequence_index = update.sequence_index;
  front.first_position = update.first_position;
  front.token_ids = TakeFront(update.token_ids, num_tokens);
  front.logprobs = TakeFront(update.logprobs, num_tokens);
  front.text_ends = TakeFront(update.text_ends, num_tokens);
  const size_t text_size = front.text_ends.empty() ? 0 : front.text_ends.back();
  front.text = update.text.substr(0, text_size);
  update.text.erase(0, text_size);
  for (uint32_t& end : update.text_ends) {
    end -= static_cast<uint32_t>(text_size);
  }
  update.first_position += static_cast<int32_t>(front.token_ids.size());
  return front;
}

bool Outbox::Append(SequenceUpdate update, Instant now) {
  if (update.prompt.num_tokens() > 0) {
    prompts_.push_back(std::move(update.prompt));
    stalled_since_ = std::min(stalled_since_, now);
    return true;
  }
  const size_t tokens = update.token_ids.size();
  const size_t bytes = BytesOf(update);
  const bool is_too_much =
      num_tokens_ + tokens > limits_.max_tokens || num_bytes_ + bytes > limits_.max_bytes;
  if (is_too_much && !update.end.has_value()) {
    return false;
  }
  num_tokens_ += tokens;
  num_bytes_ += bytes;
  if (stalled_since_ == kInfiniteFuture) {
    stalled_since_ = now;
  }
  for (SequenceUpdate& waiting : updates_) {
    if (waiting.sequence_index == update.sequence_index) {
      MoveToBack(update.token_ids, waiting.token_ids);
      MoveToBack(update.logprobs, waiting.logprobs);
      for (uint32_t end : update.text_ends) {
        waiting.text_ends.push_back(static_cast<uint32_t>(waiting.text.size()) + end);
      }
      waiting.text += update.text;
      waiting.end = std::move(update.end);
      return true;
    }
  }
  updates_.push_back(std::move(update));
  return true;
}

std::optional<SequenceUpdate> Outbox::Take() {
  if (!prompts_.empty()) {
    SequenceUpdate update;
    update.prompt = prompts_.front().TakeFront(kMaxTokensPerMessage);
    if (prompts_.front().num_tokens() == 0) {
      prompts_.pop_front();
    }
    sending_ = true;
    return update;
  }
  if (updates_.empty()) {
    return std::nullopt;
  }
  SequenceUpdate& waiting = updates_.front();
  SequenceUpdate update;
  const size_t num_tokens = NumTokensInMessage(waiting);
  if (num_tokens < waiting.token_ids.size()) {
    update = SplitFront(waiting, num_tokens);
  } else {
    update = std::move(waiting);
    updates_.pop_front();
  }
  num_tokens_ -= update.token_ids.size();
  num_bytes_ -= BytesOf(update);
  sending_ = true;
  return update;
}

void Outbox::OnSent(Instant now) {
  sending_ = false;
  stalled_since_ = empty() ? kInfiniteFuture : now;
}

void Outbox::Clear() {
  prompts_.clear();
  updates_.clear();
  num_tokens_ = 0;
  num_bytes_ = 0;
  if (!sending_) {
    stalled_since_ = kInfiniteFuture;
  }
}

}  // namespace quire
