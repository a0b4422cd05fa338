#include "tests/support/requests.h"

namespace quire {

Request MakeRequest(const RequestSpec& spec, int32_t vocab_size) {
  Request request{.id = RequestId(spec.id)};
  for (int32_t position = 0; position < spec.prompt; ++position) {
    uint64_t word = spec.id * 7919 + static_cast<uint64_t>(position) * 31;
    request.prompt_token_ids.push_back(
        static_cast<TokenId>(word % static_cast<uint64_t>(vocab_size)));
  }
  request.sampling.seed = spec.id;
  request.sampling.min_tokens = spec.min_tokens;
  request.num_sequences = spec.num_sequences;
  request.max_tokens = spec.max_tokens;
  request.stop_token_ids = spec.stop_token_ids;
  request.deadline = spec.deadline;
  return request;
}

}  // namespace quire
