// ServedModel is what the scheduler itself knows about the model: no weights, but the numbers that
// bound a request, the tokenizer and the defaults.
//
// Thread safety: immutable after Load.
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
  std::vector<std::string> names;  // at least one; any of them may be asked for
  ModelConfig config;
  GenerationDefaults defaults;
  std::vector<TokenId> eos_token_ids;    // of both files, without repeats
  std::unique_ptr<Tokenizer> tokenizer;  // null: token ids only
};

// Of a request that says nothing about sampling, without a seed.
SamplingParams DefaultSampling(const ServedModel& model);

// What decides the bits and the text of an answer, for clients: `numerics` of the workers
// (Numerics::fingerprint), and a digest of all that a request gets by default: sampling parameters,
// end-of-sequence tokens, tokenizer. The same for the same model and flags, on any machine. Empty
// while there are no numerics.
std::string DeterminismFingerprint(const ServedModel& model, std::string_view numerics);

struct ServedModelSource {
  std::string model_dir;
  std::vector<std::string> names;  // empty: the last part of model_dir
  // "auto": generation_config.json of model_dir, where there is one; "none" or "vllm": no defaults;
  // else the directory that has the file.
  std::string generation_config = "auto";
};

// Errors: those of LoadModelConfig, LoadGenerationDefaults, ResolveModelFile and Tokenizer::Load,
// and kInvalidArgument CONFIG when the defaults themselves are out of range.
absl::StatusOr<ServedModel> LoadServedModel(const ServedModelSource& source);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_SERVED_MODEL_H_
