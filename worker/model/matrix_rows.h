// MatrixRows reads the rows of a model's matrices on demand, while a backend packs them.
//
// Thread safety: Read is safe from any thread.
// Errors:        those of TensorSource::Read.
#ifndef QUIRE_WORKER_MODEL_MATRIX_ROWS_H_
#define QUIRE_WORKER_MODEL_MATRIX_ROWS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>

#include "absl/status/status.h"

#include "kernels/api/row_reader.h"
#include "worker/model/tensor_source.h"
#include "worker/model/weight_layout.h"

namespace quire {

class MatrixRows final : public RowReader {
 public:
  // tick: called at the end of each successful Read on the thread that runs this constructor, and
  // not on other threads. `bytes`: total size of all Read calls that began before this one, on any
  // thread. The source must outlive the object.
  MatrixRows(const TensorSource& source,
             TensorGroup matrices,
             std::function<void(int64_t bytes)> tick);

  absl::Status Read(size_t part, int64_t first_row, std::span<std::byte> buffer) const override;

  const TensorGroup& matrices() const { return matrices_; }

 private:
  const TensorSource& source_;
  const TensorGroup matrices_;
  const std::function<void(int64_t bytes)> tick_;
  mutable std::atomic<int64_t> bytes_begun_ = 0;  // atomic: several threads call Read
  const std::thread::id caller_ = std::this_thread::get_id();
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_MATRIX_ROWS_H_
