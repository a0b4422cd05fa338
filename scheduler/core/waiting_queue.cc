#include "scheduler/core/waiting_queue.h"

#include <algorithm>

#include "common/base/check.h"

namespace quire {
namespace {

int64_t NumPromptTokens(const Request& request) {
  return static_cast<int64_t>(request.prompt_token_ids.size());
}

}  // namespace

WaitingQueue::Refusal WaitingQueue::RefusalOf(const Request& request,
                                              const CoreConfig& config) const {
  if (size() >= config.max_queued_requests) {
    return Refusal::kFull;
  }
  if (num_prompt_tokens_ + NumPromptTokens(request) > config.max_queued_tokens) {
    return Refusal::kTokensFull;
  }
  return Refusal::kNone;
}

void WaitingQueue::PushBack(SequenceGroup& group) {
  QUIRE_CHECK(groups_.empty() || groups_.back()->id() < group.id());
  groups_.push_back(&group);
  num_prompt_tokens_ += NumPromptTokens(group.request());
}

void WaitingQueue::Return(SequenceGroup& group) {
  auto place = PlaceOf(group.id());
  QUIRE_CHECK(place == groups_.end() || (*place)->id() != group.id());
  groups_.insert(place, &group);
  num_prompt_tokens_ += NumPromptTokens(group.request());
}

void WaitingQueue::PopFront() {
  QUIRE_CHECK(!groups_.empty());
  num_prompt_tokens_ -= NumPromptTokens(front().request());
  groups_.pop_front();
}

void WaitingQueue::Remove(const SequenceGroup& group) {
  auto place = PlaceOf(group.id());
  QUIRE_CHECK(place != groups_.end() && *place == &group);
  num_prompt_tokens_ -= NumPromptTokens(group.request());
  groups_.erase(place);
}

void WaitingQueue::CheckInvariants() const {
  // First come, first served, and nobody twice.
  int64_t num_prompt_tokens = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    QUIRE_CHECK(i == 0 || groups_[i - 1]->id() < groups_[i]->id());
    num_prompt_tokens += NumPromptTokens(groups_[i]->request());
  }
  QUIRE_CHECK_EQ(num_prompt_tokens, num_prompt_tokens_);
}

std::deque<SequenceGroup*>::iterator WaitingQueue::PlaceOf(RequestId id) {
  return std::lower_bound(
      groups_.begin(), groups_.end(), id, [](const SequenceGroup* group, RequestId other) {
        return group->id() < other;
      });
}

}  // namespace quire
