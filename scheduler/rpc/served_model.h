// ServedModel holds the parts of the model that the scheduler needs: the numbers that bound a
// request, the tokenizer and the defaults, but no weights.
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

// Returns the parameters of a request that sets none. The caller sets the seed.
SamplingParams DefaultSampling(const ServedModel& model);

// Returns a string that identifies everything that decides the bits and the text of an answer. It
// joins `numerics`, which is the workers' Numerics::fingerprint, and a digest of sampling defaults,
// end-of-sequence tokens and tokenizer. The digest is the same for the same model and flags on any
// machine. Returns "" if `numerics` is empty.
std::string DeterminismFingerprint(const ServedModel& model, std::string_view numerics);

struct ServedModelSource {
  std::string model_path;          // a directory or a GGUF file
  std::vector<std::string> names;  // if empty, the one name is ModelNameOf(model_path)
  // "auto": those of the model (LoadGenerationDefaults). "none" or "vllm": no defaults. Any other
  // value: a directory that must have a generation_config.json.
  std::string generation_config = "auto";
};

// Errors: those of LoadModelConfig, LoadGenerationDefaults, ResolveModelFile and
// Tokenizer::LoadOfModel; also kInvalidArgument CONFIG if a sampling default is out of range.
absl::StatusOr<ServedModel> LoadServedModel(const ServedModelSource& source);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_SERVED_MODEL_H_
