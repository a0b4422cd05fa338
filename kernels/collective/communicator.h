// Communicator is a rank's part in what the ranks of a group do together, over main memory. Ranks
// are the corners of a cube: a rank speaks to those whose number differs in one bit, log2(size) of
// them, through memory that they share or a socket (PeerLink).
//
// A link that breaks breaks the group: all other links are ended too, so that every rank learns of
// it soon (PeerLink says how soon) and none waits for ever. What the operation under way leaves in
// its data is of no use, and operations do nothing from then on.
//
// Thread safety: one caller at a time (the executor thread), except for Abort and status.
// Cost:          AllReduce sends and receives the data log2(size) times, Gather and Broadcast as a
//                binomial tree. No allocation once it has seen its largest data.
// Source:        Thakur, Rabenseifner and Gropp 2005, section 3.
#ifndef QUIRE_KERNELS_COLLECTIVE_COMMUNICATOR_H_
#define QUIRE_KERNELS_COLLECTIVE_COMMUNICATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "common/base/mutex.h"
#include "kernels/collective/peer_link.h"

namespace quire {

class Communicator {
 public:
  // links[k] leads to rank ^ 2^k. `waits_for_rank`, where given, is kept up to date: the rank that
  // an operation waits for, or -1. REQUIRES: 0 <= rank < 2^links.size().
  Communicator(int32_t rank,
               std::vector<PeerLink> links,
               std::shared_ptr<std::atomic<int32_t>> waits_for_rank = nullptr);

  int32_t rank() const { return rank_; }
  int32_t size() const { return int32_t{1} << links_.size(); }

  // The sum over ranks: rank 0 + rank 1, 2 + 3, ..., then pairs of these.
  void AllReduce(std::span<float> data);
  // The bits that any rank has set.
  void AllReduceBits(std::span<uint32_t> data);
  // On rank 0 `whole` becomes [num_rows, sum of widths], of each rank's part [num_rows,
  // widths[rank]]; on others it is not used.
  void Gather(int64_t num_rows, std::span<const int64_t> widths, const float* part, float* whole);
  // Rank 0's bytes.
  void Broadcast(std::span<std::byte> data);

  void Abort();
  // The same, with a reason that status gives from then on.
  void Break(const absl::Status& reason);

  // For who waits for the ranks in another way than by the operations above. Whether the group is
  // whole: a link that has ended breaks it.
  bool CheckLinks();
  // That it is so, or not any more. Nobody knows which rank is waited for then: each is said to
  // wait for the next one, and the last of such a row is one that does not wait.
  void SetWaiting(bool waits);

  // Time spent in operations so far, waiting for others included. The caller of the operations.
  int64_t busy_nanos() const { return busy_nanos_; }

  // kUnavailable, reason GROUP_BROKEN, message "rank N: rule", once the group is broken; N is the
  // neighbour that was noticed first.
  absl::Status status() const;

 private:
  int32_t Partner(size_t k) const { return rank_ ^ (int32_t{1} << k); }
  // Fn merges what the rank itself has with what its partner has, the lower rank's first.
  template <typename T, typename Fn>
  void MergeWithAll(std::span<T> data, const Fn& fn);
  // Of both: false when the group is broken.
  bool Exchange(size_t k, std::span<const std::byte> out, std::span<std::byte> in);
  bool Run(size_t k, absl::FunctionRef<absl::Status(PeerLink&)> operation);
  std::byte* Scratch(size_t bytes);
  void WaitFor(int32_t rank);

  const int32_t rank_;
  std::vector<PeerLink> links_;
  const std::shared_ptr<std::atomic<int32_t>> waits_for_rank_;
  std::vector<std::byte> scratch_;
  int64_t busy_nanos_ = 0;

  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COLLECTIVE_COMMUNICATOR_H_
