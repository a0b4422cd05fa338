// Parses bytes as a GenerateRequest, for servers with and without a tokenizer, priorities and
// required salts. The request is refused with a reason, or it keeps every rule that the core relies
// on.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/slice.h>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/model/sampling_params_check.h"
#include "common/wire/id_text.h"
#include "scheduler/core/beam_search.h"
#include "scheduler/rpc/generate_request.h"
#include "scheduler/rpc/wire_message.h"
#include "scheduler/text/utf8.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_verdict.h"
#include "tests/scheduler/rpc/tiny_served_model.h"

namespace {

quire::RequestRules RulesOf(uint8_t choice) {
  static const auto* const with_tokenizer = new quire::ServedModel(quire::TinyServedModel(true));
  static const auto* const without = new quire::ServedModel(quire::TinyServedModel(false));
  return {.model = (choice & 1) != 0 ? without : with_tokenizer,
          .max_model_len = (choice & 2) != 0 ? 5 : 100,
          .fresh_seed = 7,
          .has_priorities = (choice & 4) != 0,
          .requires_cache_salt = (choice & 8) != 0,
          .determinism_fingerprint = "numbers"};
}

void CheckIds(const std::vector<quire::TokenId>& ids) {
  for (quire::TokenId id : ids) {
    QUIRE_CHECK(id >= 0 && id < quire::kTinyVocabSize);
  }
}

void CheckBeams(const quire::Request& request) {
  const quire::BeamSearchParams params{.num_beams = request.beam_search->num_beams,
                                       .num_hypotheses = request.num_sequences,
                                       .length_penalty = request.beam_search->length_penalty,
                                       .early_stopping = request.beam_search->early_stopping,
                                       .max_tokens = request.max_tokens,
                                       .min_tokens = request.sampling.min_tokens,
                                       .stop_token_ids = request.stop_token_ids};
  QUIRE_CHECK(quire::CheckBeamSearchParams(params).ok());
  QUIRE_CHECK(request.sampling.is_greedy());
  QUIRE_CHECK_EQ(request.sampling.num_logprobs, params.num_candidates());
}

// Checks the rules that hold before the prompt is tokenized.
void CheckSpec(const quire::GenerateSpec& spec, const quire::RequestRules& rules) {
  const quire::Request& request = spec.request;
  QUIRE_CHECK(request.num_sequences >= 1 &&
              request.num_sequences <= quire::kMaxSequencesPerRequest);
  QUIRE_CHECK(spec.output.num_best.value_or(1) >= 1);
  QUIRE_CHECK(spec.output.num_best.value_or(1) <= request.num_sequences);
  QUIRE_CHECK(quire::Validate(request.sampling, quire::kTinyVocabSize).ok());
  CheckIds(request.stop_token_ids);
  CheckIds(spec.token_ids);
  for (const quire::ResumedSequence& sequence : request.resumed) {
    CheckIds(sequence.token_ids);
  }
  QUIRE_CHECK_LE(request.stop_token_ids.size(), size_t{quire::kMaxStopTokenIds} + 1);
  QUIRE_CHECK_LE(spec.output.stop_strings.size(), quire::kMaxStopStrings);
  for (const std::string& stop : spec.output.stop_strings) {
    QUIRE_CHECK(!stop.empty() && stop.size() <= quire::kMaxStopStringBytes);
  }
  QUIRE_CHECK(std::abs(int64_t{request.priority}) <= quire::kMaxPriority);
  QUIRE_CHECK(rules.has_priorities || request.priority == 0);
  QUIRE_CHECK_LE(request.tenant.size(), quire::kMaxTenantBytes);
  QUIRE_CHECK_LE(request.cache_salt.size(), quire::kMaxCacheSaltBytes);
  QUIRE_CHECK(!rules.requires_cache_salt || !request.cache_salt.empty() ||
              request.bypasses_prefix_cache);
  QUIRE_CHECK(spec.timeout_ms.value_or(1) > 0);
  QUIRE_CHECK(!spec.text.has_value() ||
              (spec.text->size() <= quire::kMaxPromptBytes && quire::IsValidUtf8(*spec.text)));
}

// Checks what the core REQUIRES of a request.
void CheckRequest(const quire::GenerateSpec& spec, const quire::RequestRules& rules) {
  const quire::Request& request = spec.request;
  QUIRE_CHECK(request.num_prompt_tokens() >= 1 && request.max_tokens >= 1);
  QUIRE_CHECK(request.num_tokens_at_most() <= rules.max_model_len);
  QUIRE_CHECK(request.sampling.min_tokens <= request.max_tokens);
  QUIRE_CHECK(spec.has_all_ended() || quire::IsResumable(request));
  if (request.beam_search.has_value()) {
    CheckBeams(request);
  }
}

// The prompt as the tokenizer's thread makes it; empty if the tokenizer refuses it.
std::vector<quire::TokenId> PromptOf(const quire::GenerateSpec& spec,
                                     const quire::RequestRules& rules) {
  if (!spec.text.has_value()) {
    return spec.token_ids;
  }
  const auto ids = rules.model->tokenizer->Encode(
      *spec.text, spec.add_special_tokens, spec.parse_special_tokens);
  return ids.value_or(std::vector<quire::TokenId>());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;  // a line for each field that is no UTF-8
  quire::FuzzInput input(data, size);
  const quire::RequestRules rules = RulesOf(input.TakeByte());
  const std::string_view bytes = input.TakeRest();
  const grpc::Slice slice(bytes.data(), bytes.size());
  quire::v1::GenerateRequest message;
  const auto parsed = quire::ParseMessage(grpc::ByteBuffer(&slice, 1), &message);
  if (!parsed.ok()) {
    QUIRE_CHECK(absl::IsInvalidArgument(parsed) && !quire::ReasonOf(parsed).empty());
    return 0;
  }
  auto spec = quire::CheckGenerateRequest(message, rules);
  if (!spec.ok()) {
    QUIRE_CHECK(!quire::ReasonOf(spec.status()).empty());
    return 0;
  }
  CheckSpec(*spec, rules);
  const auto set = quire::SetPrompt(
      PromptOf(*spec, rules), rules, [] { return absl::OkStatus(); }, &*spec);
  if (!set.ok()) {
    QUIRE_CHECK(!quire::ReasonOf(set).empty());
    return 0;
  }
  CheckRequest(*spec, rules);
  quire::is_accepted = true;
  return 0;
}
