// MakeRequest builds requests for tests from the few numbers that matter to a test.
//
// Thread safety: a free function.
#ifndef QUIRE_TESTS_SUPPORT_REQUESTS_H_
#define QUIRE_TESTS_SUPPORT_REQUESTS_H_

#include <cstdint>
#include <vector>

#include "scheduler/core/request.h"

namespace quire {

struct RequestSpec {
  uint64_t id = 1;  // also the seed, which identifies the request in a plan's introductions
  int32_t prompt = 1;
  int32_t max_tokens = 16;
  int32_t num_sequences = 1;
  int32_t min_tokens = 0;
  std::vector<TokenId> stop_token_ids = {};
  Instant deadline = kInfiniteFuture;
};

// Returns a request. Its prompt tokens depend on id and position, so that prompts differ.
Request MakeRequest(const RequestSpec& spec, int32_t vocab_size = 1000);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_REQUESTS_H_
