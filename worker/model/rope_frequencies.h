// InverseFrequencies computes the frequencies of rotary position embedding, scaled as the
// configuration asks.
//
// Values follow Hugging Face transformers: they are rounded to fp32 in the same order of
// operations. (One difference remains: for one frequency in a hundred, PyTorch's power function is
// off by one unit in the last place.)
//
// Thread safety: a free function, safe from any thread.
// Source:        Su et al. 2021, RoFormer; Llama 3's scaling as in Meta's llama-models; YaRN, Peng
//                et al. 2023; LongRoPE, Ding et al. 2024; dynamic NTK as in transformers.
#ifndef QUIRE_WORKER_MODEL_ROPE_FREQUENCIES_H_
#define QUIRE_WORKER_MODEL_ROPE_FREQUENCIES_H_

#include <cstdint>
#include <vector>

#include "common/model/model_config.h"

namespace quire {

// Returns [head_dim / 2] frequencies in radians per position. max_context_tokens: the longest
// context that is served. The result depends on it only through RopeLength (rope_config.h).
std::vector<float> InverseFrequencies(const RopeConfig& rope,
                                      int32_t head_dim,
                                      int32_t max_context_tokens);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_ROPE_FREQUENCIES_H_
