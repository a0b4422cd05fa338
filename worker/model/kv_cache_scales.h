// Scales of an fp8 KV cache that a checkpoint brings along: one for the keys and one for the values
// of a layer, found by calibration, so that what is stored fits e4m3. Published under several
// names:
//
//   <attention>.k_scale, <attention>.v_scale                        compressed-tensors
//   <attention>.k_proj.k_scale, <attention>.v_proj.v_scale          ModelOpt
//   <attention>.k_proj.output_scale, <attention>.v_proj.output_scale   compressed-tensors, older
//   <attention>.kv_scale, for both                                  AutoFP8
//
// where <attention> is a layer's attention module ("model.layers.0.self_attn"). The first that is
// there counts. A layer with one of the two scales takes it for both; one with none has 1. A scale
// of the queries (<attention>.q_scale) may be there and is not used: queries stay in 16 bits.
//
// Thread safety: free functions.
// Source:        the names and the rules are those that vLLM follows when it loads a checkpoint.
#ifndef QUIRE_WORKER_MODEL_KV_CACHE_SCALES_H_
#define QUIRE_WORKER_MODEL_KV_CACHE_SCALES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"

namespace quire {

// What is stored times the scale is the value.
struct KvCacheScales {
  float key = 1.0F;
  float value = 1.0F;
};

// Every name under which a scale of this layer may stand in the files.
std::vector<std::string> KvCacheScaleNames(const LayerLayout& layer);

// One entry a layer. Errors: kInvalidArgument, reason MODEL_FILE, for a scale that is not one
// number from 1e-9 to 1e9 in F32, F16 or BF16, also where the cache will need none: a directory
// that one device takes, all take.
absl::StatusOr<std::vector<KvCacheScales>> ReadKvCacheScales(const WeightLayout& layout,
                                                             const WeightFiles& files);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_KV_CACHE_SCALES_H_
