#include "scheduler/rpc/served_model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/digest.h"
#include "common/model/model_file.h"
#include "common/model/model_path.h"
#include "common/model/sampling_params_check.h"

namespace quire {
namespace {

void AddUnique(const std::vector<TokenId>& from, std::vector<TokenId>& to) {
  for (TokenId id : from) {
    if (std::find(to.begin(), to.end(), id) == to.end()) {
      to.push_back(id);
    }
  }
}

// Refuses sampling defaults that are out of range, because every request that uses them would fail.
absl::Status CheckDefaults(const ServedModel& model, std::string_view file) {
  SamplingParams params = DefaultSampling(model);
  params.banned_before_min_tokens = model.defaults.eos_token_ids;
  absl::Status status = Validate(params, model.config.vocab_size);
  if (status.ok()) {
    return status;
  }
  return InvalidArgument("CONFIG", absl::StrCat(ToAbsl(file), ": ", status.message()));
}

// A model directory may lack generation_config.json. A directory given by --generation-config must
// have this file, because otherwise the flag is probably wrong.
absl::StatusOr<GenerationDefaults> LoadDefaults(const ServedModelSource& source) {
  if (source.generation_config == "auto") {
    return LoadGenerationDefaults(source.model_path);
  }
  const std::string name = "generation_config.json";
  const absl::Status found = ResolveModelFile(source.generation_config, name).status();
  if (!found.ok()) {
    return Error(found.code(),
                 ReasonOf(found),
                 absl::StrCat("--generation-config: ",
                              source.generation_config,
                              "/",
                              name,
                              ": ",
                              absl::string_view(found.message())));
  }
  return LoadGenerationDefaults(source.generation_config);
}

}  // namespace

SamplingParams DefaultSampling(const ServedModel& model) {
  const GenerationDefaults& defaults = model.defaults;
  SamplingParams params;
  params.temperature =
      defaults.do_sample == false ? 0.0F : defaults.temperature.value_or(params.temperature);
  params.top_k = std::min(defaults.top_k.value_or(params.top_k), model.config.vocab_size);
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);
  return params;
}

std::string DeterminismFingerprint(const ServedModel& model, std::string_view numerics) {
  if (numerics.empty()) {
    return "";
  }
  const SamplingParams sampling = DefaultSampling(model);
  Digest digest;
  digest.AddInt(int64_t{sampling.top_k});
  for (float number :
       {sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty}) {
    digest.AddDouble(number);
  }
  std::vector<TokenId> eos_token_ids = model.eos_token_ids;
  std::sort(eos_token_ids.begin(), eos_token_ids.end());
  digest.AddInt(uint64_t{eos_token_ids.size()});
  for (TokenId id : eos_token_ids) {
    digest.AddInt(int64_t{id});
  }
  digest.AddInt(int64_t{model.tokenizer != nullptr});
  digest.AddInt(model.tokenizer != nullptr ? model.tokenizer->file_digest() : uint64_t{0});
  return absl::StrCat(ToAbsl(numerics), "/", absl::Hex(digest.value(), absl::kZeroPad16));
}

absl::StatusOr<ServedModel> LoadServedModel(const ServedModelSource& source) {
  ServedModel model;
  model.names = source.names;
  if (model.names.empty()) {
    model.names.push_back(ModelNameOf(source.model_path));
  }
  QUIRE_ASSIGN_OR_RETURN(model.config, LoadModelConfig(source.model_path));
  if (source.generation_config != "none" && source.generation_config != "vllm") {
    QUIRE_ASSIGN_OR_RETURN(model.defaults, LoadDefaults(source));
    const bool is_gguf = source.generation_config == "auto" && IsGgufPath(source.model_path);
    QUIRE_RETURN_IF_ERROR(
        CheckDefaults(model, is_gguf ? source.model_path : "generation_config.json"));
  }
  AddUnique(model.config.eos_token_ids, model.eos_token_ids);
  AddUnique(model.defaults.eos_token_ids, model.eos_token_ids);
  QUIRE_ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::LoadOfModel(source.model_path));
  return model;
}

}  // namespace quire
