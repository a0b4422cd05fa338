// BenchPrompts makes the requests of `quire bench serve`.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_DEPLOY_CLI_BENCH_PROMPTS_H_
#define QUIRE_DEPLOY_CLI_BENCH_PROMPTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/v1/generation.pb.h"

namespace quire {

struct BenchPrompts {
  std::string dataset_name = "random";
  std::string dataset_path;
  int32_t random_input_tokens = 128;
  int32_t random_output_tokens = 128;
  int32_t num_prompts = 100;
  bool ignore_eos = false;
  float temperature = 0;
  int64_t timeout_ms = 0;  // 0: none
  uint64_t seed = 0;
};

// Returns num_prompts requests. If vocab_size is positive, prompts are random token ids below
// vocab_size. If it is 0, prompts are texts of random words, each one token in most vocabularies.
std::vector<v1::GenerateRequest> RandomRequests(const BenchPrompts& prompts, int32_t vocab_size);

// Returns num_prompts requests, one for each non-empty line of the file, in order. If the file has
// fewer such lines, starts again with the first one. needs_text: a prompt must be text, not token
// ids. Errors: kInvalidArgument, with the number of the bad line.
absl::StatusOr<std::vector<v1::GenerateRequest>> CustomRequests(const BenchPrompts& prompts,
                                                                bool needs_text);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_BENCH_PROMPTS_H_
