// ALiBi slopes, one per head: the factors by which attention scores fall with the distance between
// query and key. If the number n of heads is a power of two, the slopes are 2^(-8/n), 2^(-16/n),
// ... Otherwise n is the next lower power of two, and the other heads take every other slope of 2n
// heads.
//
// Thread safety: a pure function.
// Source:        Press et al. 2022 (ALiBi); build_alibi_tensor of Hugging Face transformers, which
//                adds slope * key position. Ours adds slope * (key position - query position). The
//                two differ by a constant in each row of scores, which softmax cancels.
#ifndef QUIRE_WORKER_MODEL_ALIBI_H_
#define QUIRE_WORKER_MODEL_ALIBI_H_

#include <cstdint>
#include <vector>

namespace quire {

// Returns [num_heads] slopes. REQUIRES: num_heads > 0.
std::vector<float> AlibiSlopes(int32_t num_heads);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_ALIBI_H_
