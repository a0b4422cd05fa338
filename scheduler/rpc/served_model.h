// ServedModel is what the scheduler itself knows about the model: no weights, but the numbers that
// bound a request, the tokenizer and the defaults.
//
// Thread safety: immutable after Load.
#ifndef QUIRE_SCHEDULER_RPC_SERVED_MODEL_H_
#define QUIRE_SCHEDULER_RPC_SERVED_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "common/model/model_config.h"
#include "scheduler/text/tokenizer.h"

namespace quire {

struct ServedModel {
  std::vector<std::string> names;  // at least one; any of them may be asked for
  ModelConfig config;
  GenerationDefaults defaults;
  std::vector<TokenId> eos_token_ids;    // of both files, without repeats
  std::unique_ptr<Tokenizer> tokenizer;  // null: token ids only
};

struct ServedModelSource {
  std::string model_dir;
  std::vector<std::string> names;  // empty: the last part of model_dir
  // "auto": generation_config.json of model_dir; "none" or "vllm": no defaults; else a directory.
  std::string generation_config = "auto";
};

// Errors: those of LoadModelConfig, LoadGenerationDefaults and Tokenizer::Load, and
// kInvalidArgument CONFIG when the defaults themselves are out of range.
absl::StatusOr<ServedModel> LoadServedModel(const ServedModelSource& source);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_SERVED_MODEL_H_
