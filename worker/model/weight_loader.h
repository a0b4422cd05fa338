// CheckWeightFiles compares a model's files with its configuration; LoadWeights reads the weights
// through a backend.
//
// The check comes first and is complete: every tensor is there, has the shape that config.json asks
// for and a type that can be computed with, and nothing unknown lies beside them. Only then is
// memory for weights taken, so that memory is bounded by the size of the files. Files are read
// ahead by several threads (read_ahead.h) while the backend packs what was read before. A backend
// that packs while it reads does without: each of its threads reads the rows of a panel, adds them
// up and packs them while they are in its cache. Tables are read to where they stay, but for a tied
// model's: it is packed too, and not kept beside that. The rest is small.
//
// Thread safety: one caller at a time per backend.
// Errors:        see load_error.h; kResourceExhausted when memory ends.
#ifndef QUIRE_WORKER_MODEL_WEIGHT_LOADER_H_
#define QUIRE_WORKER_MODEL_WEIGHT_LOADER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/model_config.h"
#include "kernels/api/kernel_backend.h"
#include "worker/model/decoder_weights.h"
#include "worker/model/model.h"
#include "worker/model/tensor_source.h"
#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"

namespace quire {

// The layout under the name prefix that the files use, after checking the files against it.
absl::StatusOr<WeightLayout> CheckWeightFiles(const ModelConfig& config, const WeightFiles& files);

// What LoadWeights takes of main memory on a CPU: matrices as the backend packs them; tables as
// they are; norms and biases as fp32; the buffer for reading ahead. The output matrix of a tied
// model stands beside the token table, or, where the backend packs while it reads, for it.
int64_t LoadedBytes(const WeightLayout& layout,
                    const TensorSource& source,
                    const KernelBackend& backend);

absl::StatusOr<DecoderWeights> LoadWeights(const WeightLayout& layout,
                                           const TensorSource& source,
                                           KernelBackend& backend,
                                           const LoadProgressFn& progress);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_LOADER_H_
