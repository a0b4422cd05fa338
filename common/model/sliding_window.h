// NumBlocksBeforeWindow tells how many leading blocks of a sequence are no longer read. It is for
// models in which every layer has a sliding window (Mistral). In these layers a query attends to
// itself and to the window - 1 tokens before it.
//
// Thread safety: any thread.
// Units:         tokens; a window of 0 means no window: every block is read.
// Source:        Mistral 7B, Jiang et al. 2023, section 2 (sliding window attention).
#ifndef QUIRE_COMMON_MODEL_SLIDING_WINDOW_H_
#define QUIRE_COMMON_MODEL_SLIDING_WINDOW_H_

#include <algorithm>
#include <cstdint>

namespace quire {

// Returns the number of leading blocks that lie wholly before the window of the token at position
// num_computed_tokens. These blocks also lie before the window of every later token.
// REQUIRES: num_computed_tokens >= 0, sliding_window >= 0, block_size_tokens >= 1.
inline int32_t NumBlocksBeforeWindow(int32_t num_computed_tokens,
                                     int32_t sliding_window,
                                     int32_t block_size_tokens) {
  if (sliding_window == 0) {
    return 0;
  }
  const int32_t first_read = std::max(0, num_computed_tokens - (sliding_window - 1));
  return first_read / block_size_tokens;
}

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_SLIDING_WINDOW_H_
