// CheckWeightFiles compares a model's files with its configuration, before memory for weights is
// allocated. It fails unless every tensor is present, with the shape that the configuration asks
// for and with a supported type. It also fails if the files hold an unknown tensor.
//
// Thread safety: a free function, safe from any thread.
// Errors:        see load_error.h.
#ifndef QUIRE_WORKER_MODEL_WEIGHT_FILE_CHECK_H_
#define QUIRE_WORKER_MODEL_WEIGHT_FILE_CHECK_H_

#include "absl/status/statusor.h"

#include "common/model/model_config.h"
#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"

namespace quire {

// Returns the layout with the name prefix and the order of rows that the files use.
absl::StatusOr<WeightLayout> CheckWeightFiles(const ModelConfig& config, const WeightFiles& files);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_FILE_CHECK_H_
