#include "scheduler/core/request.h"

#include <algorithm>

namespace quire {

int32_t Request::num_live_sequences() const {
  return group_size() - static_cast<int32_t>(std::ranges::count_if(
                            resumed, [](const auto& sequence) { return sequence.has_ended; }));
}

int64_t Request::num_known_tokens() const {
  size_t num_output_tokens = 0;
  for (const ResumedSequence& sequence : resumed) {
    num_output_tokens =
        std::max(num_output_tokens, sequence.has_ended ? 0 : sequence.token_ids.size());
  }
  return static_cast<int64_t>(prompt_token_ids.size() + num_output_tokens);
}

bool IsResumable(const Request& request) {
  const auto max_tokens = static_cast<size_t>(request.max_tokens);
  const bool has_room = std::ranges::all_of(request.resumed, [max_tokens](const auto& sequence) {
    return sequence.has_ended || sequence.token_ids.size() < max_tokens;
  });
  return request.resumed.empty() ||
         (!request.beam_search && has_room && request.num_live_sequences() >= 1 &&
          request.resumed.size() == static_cast<size_t>(request.num_sequences));
}

}  // namespace quire
