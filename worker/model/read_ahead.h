// ReadAhead reads tensors before they are asked for: several threads fill one buffer, in pieces,
// while the caller packs and uploads what was read before. One thread reads a file at a fraction of
// what the page cache, a RAID or a network file system gives to several.
//
// The buffer is a ring of host memory of the backend, pinned where there is a GPU. Tensors that are
// used together are a group; a group lies in one piece, and its memory is used again when the next
// one is taken.
//
// Thread safety: one caller; the threads are the object's own.
// Errors:        those of TensorSource::Read, when their tensor is taken; kResourceExhausted
// without
//                memory for the buffer.
// Cost:          memory of the largest group, at least kMinRingBytes or all tensors, whichever is
//                less.
#ifndef QUIRE_WORKER_MODEL_READ_AHEAD_H_
#define QUIRE_WORKER_MODEL_READ_AHEAD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/mutex.h"
#include "kernels/api/kernel_backend.h"
#include "worker/model/tensor_source.h"

namespace quire {

class ReadAhead {
 public:
  static constexpr int64_t kMinRingBytes = int64_t{256} << 20;

  // Groups are read in their order. The source outlives the object.
  static absl::StatusOr<std::unique_ptr<ReadAhead>> Start(const TensorSource& source,
                                                          std::vector<TensorGroup> groups,
                                                          KernelBackend& backend,
                                                          int64_t min_ring_bytes = kMinRingBytes);
  // Stops the threads, whether or not all was read.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The tensors of the next group, one after another, valid until the next call. Waits for them;
  // `tick` is called when it does, and after each piece of any tensor that was read meanwhile, with
  // the bytes of this group that are there. REQUIRES: fewer calls than there are groups.
  absl::StatusOr<std::vector<std::span<const std::byte>>> Next(
      const std::function<void(int64_t bytes)>& tick);

  // The buffer with the only group. REQUIRES: there is one, and it was taken.
  std::unique_ptr<DeviceMemory> TakeBuffer();

 private:
  struct PlacedTensor {
    TensorShape shape;
    int64_t bytes = 0;
    size_t group = 0;
    int64_t place = 0;  // in the ring
  };
  struct PlacedGroup {
    size_t first_tensor = 0;
    size_t end_tensor = 0;
    int64_t begin = 0;  // counted on through all rounds of the ring
    int64_t end = 0;
  };
  struct Piece {
    size_t tensor = 0;
    int64_t begin = 0;
    int64_t bytes = 0;
  };

  explicit ReadAhead(const TensorSource& source) : source_(source) {}

  // Where everything lies in the ring, and in which pieces it is read.
  void Place(std::vector<TensorGroup> groups);
  void ReadPieces();
  // The next piece is to be read now, or there is none to be read any more.
  bool CanGoOn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TensorSource& source_;
  int64_t ring_bytes_ = 0;
  std::unique_ptr<DeviceMemory> ring_;
  std::vector<PlacedTensor> tensors_;
  std::vector<PlacedGroup> groups_;
  std::vector<Piece> pieces_;

  Mutex mutex_;
  CondVar changed_;
  size_t next_piece_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_pieces_read_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t next_group_ ABSL_GUARDED_BY(mutex_) = 0;             // to be taken
  int64_t freed_ ABSL_GUARDED_BY(mutex_) = 0;                 // all before may be overwritten
  std::vector<size_t> pieces_left_ ABSL_GUARDED_BY(mutex_);   // by group
  std::vector<int64_t> bytes_read_ ABSL_GUARDED_BY(mutex_);   // by group
  std::vector<absl::Status> errors_ ABSL_GUARDED_BY(mutex_);  // by group, of its first failed piece
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_READ_AHEAD_H_
