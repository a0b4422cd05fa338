// WaitingQueue holds the groups that are not running, first come first served. New ones join at the
// end and are refused beyond the bounds. Groups that were running come back to the place of their
// arrival, ahead of everything newer, and are never refused.
//
// Thread safety: not thread-safe; owned by CoreState. Observes the groups.
// Invariants:    ordered by RequestId, which is the order of arrival; no group twice.
// Cost:          PushBack and PopFront O(1); Return and Remove O(size) pointer moves.
#ifndef QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_
#define QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_

#include <cstdint>
#include <deque>

#include "scheduler/core/core_config.h"
#include "scheduler/core/sequence_group.h"

namespace quire {

class WaitingQueue {
 public:
  enum class Refusal : uint8_t { kNone, kFull, kTokensFull };

  // Whether a new request may join.
  Refusal RefusalOf(const Request& request, const CoreConfig& config) const;

  // A new group. REQUIRES: newer than every group here.
  void PushBack(SequenceGroup& group);

  // A group that was running. REQUIRES: not here.
  void Return(SequenceGroup& group);

  SequenceGroup& front() const { return *groups_.front(); }  // REQUIRES: !empty()
  void PopFront();                                           // REQUIRES: !empty()
  void Remove(const SequenceGroup& group);                   // REQUIRES: here

  bool empty() const { return groups_.empty(); }
  int32_t size() const { return static_cast<int32_t>(groups_.size()); }
  int64_t num_prompt_tokens() const { return num_prompt_tokens_; }
  const std::deque<SequenceGroup*>& groups() const { return groups_; }

  void CheckInvariants() const;

 private:
  std::deque<SequenceGroup*>::iterator PlaceOf(RequestId id);

  std::deque<SequenceGroup*> groups_;
  int64_t num_prompt_tokens_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_
