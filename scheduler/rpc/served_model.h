// ServedModel holds the parts of a model that the scheduler needs: names, config, sampling
// defaults, end-of-sequence tokens and tokenizer, but no weights.
//
// Thread safety: immutable after LoadServedModel.
#ifndef QUIRE_SCHEDULER_RPC_SERVED_MODEL_H_
#define QUIRE_SCHEDULER_RPC_SERVED_MODEL_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "common/model/model_config.h"
#include "common/model/sampling_params.h"
#include "scheduler/text/tokenizer.h"

namespace quire {

struct ServedModel {
  std::vector<std::string> names;  // at least one; a request may use any of them
  ModelConfig config;
  GenerationDefaults defaults;
  std::vector<TokenId> eos_token_ids;    // from config and defaults, without duplicates
  std::unique_ptr<Tokenizer> tokenizer;  // null: clients must use token ids
};

// Returns the sampling parameters of a request that sets none. Does not set the seed.
SamplingParams DefaultSampling(const ServedModel& model);

// Returns a fingerprint of everything that decides the bits and the text of an answer. It joins
// `numerics` (the workers' Numerics::fingerprint) and a digest of sampling defaults,
// end-of-sequence tokens and tokenizer. The same model and flags give the same digest on any
// machine. Returns "" if `numerics` is empty.
std::string DeterminismFingerprint(const ServedModel& model, std::string_view numerics);

struct ServedModelSource {
  std::string model_path;          // a directory or a GGUF file
  std::vector<std::string> names;  // empty: the only name is ModelNameOf(model_path)
  // Source of the sampling defaults. "auto": the model (LoadGenerationDefaults). "none" or "vllm":
  // no defaults. Any other value: a directory, which must have a generation_config.json.
  std::string generation_config = "auto";
};

// Errors: those of LoadModelConfig, LoadGenerationDefaults, ResolveModelFile and
// Tokenizer::LoadOfModel; also kInvalidArgument CONFIG if a sampling default is out of range.
absl::StatusOr<ServedModel> LoadServedModel(const ServedModelSource& source);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_SERVED_MODEL_H_
