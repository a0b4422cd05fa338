// ALiBi slopes, one per head: the factors by which attention scores fall with the distance between
// query and key. If the number n of heads is a power of two, the slopes are 2^(-8 i / n) for i from
// 1 to n. Otherwise let m be the next lower power of two: the first m heads have the slopes of a
// model with m heads. The other heads have the first, third, fifth, ... slope of a model with 2m
// heads.
//
// Thread safety: any thread; a free function without state.
// Source:        Press et al. 2022 (ALiBi); build_alibi_tensor of Hugging Face transformers. That
//                function adds slope * key position to a score; ours adds slope * (key position -
//                query position). So the two scores differ by slope * query position, which is the
//                same for all keys of a query and cancels in softmax.
#ifndef QUIRE_WORKER_MODEL_ALIBI_H_
#define QUIRE_WORKER_MODEL_ALIBI_H_

#include <cstdint>
#include <vector>

namespace quire {

// Returns [num_heads] slopes. REQUIRES: num_heads > 0.
std::vector<float> AlibiSlopes(int32_t num_heads);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_ALIBI_H_
