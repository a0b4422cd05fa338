// Scales that a checkpoint carries for an fp8 KV cache: in each layer one for the keys and one for
// the values. Calibration chose them so that stored numbers fit e4m3. Checkpoints publish scales
// under several names:
//
//   <attention>.k_scale, <attention>.v_scale                        compressed-tensors
//   <attention>.k_proj.k_scale, <attention>.v_proj.v_scale          ModelOpt
//   <attention>.k_proj.output_scale, <attention>.v_proj.output_scale   compressed-tensors, older
//   <attention>.kv_scale, for both                                  AutoFP8
//
// where <attention> is a layer's attention module ("model.layers.0.self_attn"). If several names
// are present, the first counts. If a layer has only one of the two scales, it is used for keys and
// values; if a layer has neither, both are 1. A scale of the queries (<attention>.q_scale) is
// accepted and ignored, because queries are not stored in fp8.
//
// Thread safety: any thread; free functions without state.
// Source:        the names and the rules are those that vLLM follows when it loads a checkpoint.
#ifndef QUIRE_WORKER_MODEL_KV_CACHE_SCALES_H_
#define QUIRE_WORKER_MODEL_KV_CACHE_SCALES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"

namespace quire {

// Factors that turn stored numbers into keys and values.
struct KvCacheScales {
  float key = 1.0F;
  float value = 1.0F;
};

// Returns every name that a scale of this layer may have in the files.
std::vector<std::string> KvCacheScaleNames(const LayerLayout& layer);

// Returns one entry per layer. Errors: kInvalidArgument, reason MODEL_FILE, if a scale is not one
// number from 1e-9 to 1e9 in F32, F16 or BF16. The scales are checked even if the cache does not
// use them, so that all devices accept the same directories.
absl::StatusOr<std::vector<KvCacheScales>> ReadKvCacheScales(const WeightLayout& layout,
                                                             const WeightFiles& files);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_KV_CACHE_SCALES_H_
