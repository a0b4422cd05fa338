// Request is what a client asked for, after validation and tokenisation.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_CORE_REQUEST_H_
#define QUIRE_SCHEDULER_CORE_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/model/sampling_params.h"

namespace quire {

struct Request {
  RequestId id;                           // strictly increasing in order of arrival
  std::vector<TokenId> prompt_token_ids;  // at least one
  SamplingParams sampling;                // min_tokens and bans included
  int32_t num_sequences = 1;              // n: independent outputs of one prompt
  int32_t max_tokens = 16;                // output tokens of each sequence, >= 1
  std::vector<TokenId> stop_token_ids;    // end a sequence once min_tokens exist; few, any order
  std::string cache_salt;                 // only requests of the same salt share blocks
  bool bypasses_prefix_cache = false;     // neither takes cached blocks nor leaves any
  Instant arrival = 0;
  Instant deadline = kInfiniteFuture;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_REQUEST_H_
