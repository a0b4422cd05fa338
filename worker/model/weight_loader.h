// LoadWeights reads a model's weights through a backend. Several threads read ahead (read_ahead.h)
// while the backend packs tensors that were read before. REQUIRES: CheckWeightFiles has accepted
// the files, so that their size bounds the memory for weights.
//
// If the backend packs while reading, matrices bypass the read-ahead buffer. Each thread reads some
// rows, adds them to the checksum, and packs them while they are in the cache of the thread's CPU.
// Tables are read directly into their memory, unpacked. The exception is a tied model, whose token
// table is its output matrix too: that table is packed, and no unpacked copy is kept.
//
// Thread safety: one caller at a time per backend.
// Errors:        see load_error.h; kResourceExhausted if memory runs out.
#ifndef QUIRE_WORKER_MODEL_WEIGHT_LOADER_H_
#define QUIRE_WORKER_MODEL_WEIGHT_LOADER_H_

#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"
#include "worker/model/decoder_weights.h"
#include "worker/model/model.h"
#include "worker/model/tensor_source.h"
#include "worker/model/weight_layout.h"

namespace quire {

// Returns the main memory that LoadWeights takes on a CPU: packed matrices, tables in the type of
// the files, norms and biases in fp32, and the buffer for reading ahead. For a tied model, counts
// both the token table and the output matrix, or only the output matrix if the backend packs while
// reading.
int64_t LoadedBytes(const WeightLayout& layout,
                    const TensorSource& source,
                    const KernelBackend& backend);

absl::StatusOr<DecoderWeights> LoadWeights(const WeightLayout& layout,
                                           const TensorSource& source,
                                           KernelBackend& backend,
                                           const LoadProgressFn& progress);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_LOADER_H_
