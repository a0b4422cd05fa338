// Communicator runs one rank's side of the collective operations of a group of ranks, over main
// memory. The ranks form a hypercube: each rank is linked, through shared memory or a socket
// (PeerLink), to the log2(size) ranks whose numbers differ from its own in one bit.
//
// A broken link breaks the group. All other links are aborted too, so that every rank learns of
// the break soon (see PeerLink) and no rank waits forever. The operation under way leaves its data
// undefined, and later operations do nothing.
//
// Thread safety: one caller at a time (the executor thread), except for Abort and status.
// Cost:          AllReduce sends and receives the data log2(size) times. Gather and Broadcast
//                follow a binomial tree. Allocates only when a call has more data than all calls
//                before it.
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
  // links[k] connects this rank to rank (`rank` XOR 2^k). If `waits_for_rank` is given, operations
  // store in it the rank for which they wait, and -1 after the wait. REQUIRES: 0 <= rank <
  // 2^links.size().
  Communicator(int32_t rank,
               std::vector<PeerLink> links,
               std::shared_ptr<std::atomic<int32_t>> waits_for_rank = nullptr);

  int32_t rank() const { return rank_; }
  int32_t size() const { return int32_t{1} << links_.size(); }

  // Replaces `data` on each rank by the sum of all ranks' `data`. The order of additions is fixed:
  // rank 0 + rank 1, rank 2 + rank 3, ..., then pairs of these sums.
  void AllReduce(std::span<float> data);
  // Replaces `data` on each rank by the bitwise OR of all ranks' `data`.
  void AllReduceBits(std::span<uint32_t> data);
  // Joins each rank's part [num_rows, widths[rank]] into `whole` [num_rows, sum of widths] on rank
  // 0; the other ranks do not use `whole`.
  void Gather(int64_t num_rows, std::span<const int64_t> widths, const float* part, float* whole);
  // Copies rank 0's bytes to all ranks.
  void Broadcast(std::span<std::byte> data);

  void Abort();
  // Aborts all links. status() then returns `reason`, unless the group was broken before.
  void Break(const absl::Status& reason);

  // Breaks the group if a link has ended. Returns whether the group is still unbroken. A caller
  // that waits for ranks in NCCL must poll this function, else the caller would not notice a lost
  // rank.
  bool CheckLinks();
  // Marks the start (true) or end of a wait in NCCL, which does not tell which rank is late. During
  // the wait `*waits_for_rank` is the next rank, (rank + 1) % size. A reader that follows these
  // numbers from rank to rank arrives at a rank that does not wait: a late rank.
  void SetWaiting(bool waits);

  // Returns the time spent in operations so far, waiting included. Call busy_nanos only on the
  // thread that runs the operations.
  int64_t busy_nanos() const { return busy_nanos_; }

  // Returns OK until the group is broken, then kUnavailable, reason GROUP_BROKEN. If a failed link
  // broke the group, the message is "rank N: cause", where rank N is at the link's other end.
  absl::Status status() const;

 private:
  int32_t Partner(size_t k) const { return rank_ ^ (int32_t{1} << k); }
  // `fn` merges an element of this rank with the partner's element of the same index. The first
  // argument of `fn` is the element of the lower rank.
  template <typename T, typename Fn>
  void MergeWithAll(std::span<T> data, const Fn& fn);
  // Exchange and Run return false if the group is broken.
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
