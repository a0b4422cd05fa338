// AlibiSlopes are the factors by which attention scores fall with the distance between query and
// key, one per head: 2^(-8/n), 2^(-16/n), ... for a power of two n of heads. Further heads take the
// slopes between the first ones: every other one of 2n heads.
//
// Thread safety: a pure function.
// Source:        Press et al. 2022 (ALiBi); build_alibi_tensor of Hugging Face transformers, which
//                adds slope * key position. Ours is slope * (key position - query position): within
//                a row of scores they differ by a constant, which softmax takes away.
#ifndef QUIRE_WORKER_MODEL_ALIBI_H_
#define QUIRE_WORKER_MODEL_ALIBI_H_

#include <cstdint>
#include <vector>

namespace quire {

// REQUIRES: num_heads > 0.
std::vector<float> AlibiSlopes(int32_t num_heads);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_ALIBI_H_
