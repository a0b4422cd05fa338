// WriteRandomModel writes a model directory with weights from a seed, for any supported
// configuration. The configuration decides which tensors there are.
#ifndef QUIRE_TESTS_WORKER_MODEL_RANDOM_MODEL_H_
#define QUIRE_TESTS_WORKER_MODEL_RANDOM_MODEL_H_

#include <cstdint>
#include <map>
#include <string>

#include "common/json/json.h"
#include "tests/worker/model/model_dir.h"

namespace quire {

// Weights in bf16, scaled so that activations stay near 1 and logits have clear winners. Ends the
// test program when the configuration is refused. `scalars` are tensors of one number beside them.
void WriteRandomModel(const Json& config,
                      uint64_t seed,
                      ModelDir* dir,
                      const std::map<std::string, float>& scalars = {});

// A Llama that eight ranks can divide: odd vocabulary, one KV head for two ranks, biases.
Json EightHeads();

}  // namespace quire

#endif  // QUIRE_TESTS_WORKER_MODEL_RANDOM_MODEL_H_
