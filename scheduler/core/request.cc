#include "scheduler/core/request.h"

#include <algorithm>

namespace quire {

int32_t Request::num_live_sequences() const {
  return group_size() - static_cast<int32_t>(std::ranges::count_if(
                            resumed, [](const auto& sequence) { return sequence.has_ended; }));
}

int64_t Request::num_known_tokens() const {
  int64_t num_tokens = num_prompt_tokens();
  for (const ResumedSequence& sequence : resumed) {
    num_tokens += static_cast<int64_t>(sequence.token_ids.size());
  }
  return num_tokens;
}

void CutToContext(int32_t max_model_len, Request* request) {
  if (!request->is_resumed) {
    const int32_t room = std::max(1, max_model_len - request->num_prompt_tokens());
    request->max_tokens = std::min(request->max_tokens, room);
  }
}

bool IsResumable(const Request& request) {
  const auto max_tokens = static_cast<size_t>(request.max_tokens);
  const bool has_room = std::ranges::all_of(request.resumed, [max_tokens](const auto& sequence) {
    return sequence.has_ended || sequence.token_ids.size() < max_tokens;
  });
  return request.resumed.empty() ||
         (request.is_resumed && !request.beam_search && has_room &&
          request.num_live_sequences() >= 1 &&
          request.resumed.size() == static_cast<size_t>(request.num_sequences));
}

}  // namespace quire
