// ReadAhead reads tensors before they are needed: several threads fill one buffer, in pieces, while
// the caller packs and uploads earlier tensors. A single thread would get only a fraction of the
// bandwidth of the page cache, a RAID or a network file system.
//
// The buffer is a ring of host memory of the backend, pinned for a GPU. Tensors that are used
// together form a group. A group is contiguous in the ring. Each call of Next frees the memory of
// the group that the previous call returned.
//
// Thread safety: one caller at a time; the object owns its threads.
// Errors:        those of TensorSource::Read, returned by Next for the group that has the error;
//                kResourceExhausted from Start if memory for the buffer is lacking.
// Cost:          the buffer takes min(kMinRingBytes, bytes of all tensors), but at least the bytes
//                of the largest group.
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

  // Starts the threads, which read the groups in order. The source must outlive the object.
  static absl::StatusOr<std::unique_ptr<ReadAhead>> Start(const TensorSource& source,
                                                          std::vector<TensorGroup> groups,
                                                          KernelBackend& backend,
                                                          int64_t min_ring_bytes = kMinRingBytes);
  // Stops the threads, even if some groups were not read.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Waits for the next group and returns its tensors, valid until the next call. During the wait,
  // calls `tick` at the start and after each piece that any thread has read. `bytes`: how many
  // bytes of the awaited group have been read. REQUIRES: a group is left.
  absl::StatusOr<std::vector<std::span<const std::byte>>> Next(
      const std::function<void(int64_t bytes)>& tick);

  // Moves the buffer to the caller. REQUIRES: Start got exactly one group, and Next has returned
  // it.
  std::unique_ptr<DeviceMemory> TakeBuffer();

 private:
  struct PlacedTensor {
    TensorShape shape;
    int64_t bytes = 0;
    size_t group = 0;
    int64_t place = 0;  // offset in the ring
  };
  struct PlacedGroup {
    size_t first_tensor = 0;
    size_t end_tensor = 0;
    // Offsets that keep growing when the ring starts over: not reduced modulo ring_bytes_.
    int64_t begin = 0;
    int64_t end = 0;
  };
  struct Piece {
    size_t tensor = 0;
    int64_t begin = 0;
    int64_t bytes = 0;
  };

  explicit ReadAhead(const TensorSource& source) : source_(source) {}

  // Decides where each tensor lies in the ring, and the pieces in which it is read.
  void Place(std::vector<TensorGroup> groups);
  void ReadPieces();
  // Returns true if the ring has room for the next piece's group, or no piece is left to read.
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
  size_t next_group_ ABSL_GUARDED_BY(mutex_) = 0;  // index of the group that the next call returns
  int64_t freed_ ABSL_GUARDED_BY(mutex_) = 0;      // offset as in PlacedGroup: end of the free part
  std::vector<size_t> pieces_left_ ABSL_GUARDED_BY(mutex_);   // by group: pieces not read yet
  std::vector<int64_t> bytes_read_ ABSL_GUARDED_BY(mutex_);   // by group
  std::vector<absl::Status> errors_ ABSL_GUARDED_BY(mutex_);  // by group: the first error
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_READ_AHEAD_H_
