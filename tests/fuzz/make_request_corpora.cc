// Requests of clients.
#include <limits>
#include <string>

#include "proto/v1/generation.pb.h"

#include "common/model/sampling_params.h"
#include "common/wire/id_text.h"
#include "scheduler/core/beam_search.h"
#include "scheduler/rpc/generate_request.h"
#include "scheduler/text/stop_matcher.h"
#include "tests/fuzz/message_corpora.h"
#include "tests/scheduler/rpc/tiny_served_model.h"

namespace {

// The first byte chooses the server.
constexpr char kPriorities = 4;
constexpr char kPrioritiesWithoutTokenizer = 5;

void WriteRequest(const std::string& name,
                  const quire::v1::GenerateRequest& request,
                  char server = kPriorities) {
  quire::WriteSeed("generate_request", name, server + request.SerializeAsString());
}

quire::v1::GenerateRequest TokensRequest() {
  quire::v1::GenerateRequest request;
  for (int id : {1, 2, 3}) {
    request.mutable_token_ids()->add_ids(id);
  }
  request.mutable_stopping()->set_max_tokens(9);
  return request;
}

void Sample(quire::v1::GenerateRequest* request) {
  request->mutable_sampling()->set_temperature(1);
}

void SetResumable(quire::v1::GenerateRequest* request) {
  request->mutable_resume()->set_determinism_fingerprint("numbers");
  request->mutable_resume()->set_seed(7);
  request->mutable_resume()->set_max_tokens(9);
}

// A bound of a field, on a server with a context of 100 tokens.
struct RequestBound {
  const char* name;
  void (*set)(quire::v1::GenerateRequest* request, int past);
  char server = kPriorities;
};
constexpr RequestBound kRequestBounds[] = {
    {"token_id",
     [](auto* request, int past) {  // ids 30 and 31 are none of the tokenizer's
       request->mutable_token_ids()->set_ids(0, 29 + past);
     }},
    {"token_id_without_tokenizer",
     [](auto* request, int past) {
       request->mutable_token_ids()->set_ids(0, quire::kTinyVocabSize - 1 + past);
     },
     kPrioritiesWithoutTokenizer},
    {"negative_token_id",
     [](auto* request, int past) { request->mutable_token_ids()->set_ids(0, -past); }},
    {"prompt",
     [](auto* request, int past) {
       request->mutable_token_ids()->mutable_ids()->Resize(99 + past, 1);
       request->mutable_stopping()->clear_max_tokens();
     }},
    {"max_tokens",
     [](auto* request, int past) { request->mutable_stopping()->set_max_tokens(97 + past); }},
    {"no_tokens",
     [](auto* request, int past) { request->mutable_stopping()->set_max_tokens(1 - past); }},
    {"min_tokens",
     [](auto* request, int past) { request->mutable_stopping()->set_min_tokens(9 + past); }},
    {"stop_token_id",
     [](auto* request, int past) {
       request->mutable_stopping()->add_stop_token_ids(quire::kTinyVocabSize - 1 + past);
     }},
    {"stop_token_ids",
     [](auto* request, int past) {
       for (int i = 0; i < quire::kMaxStopTokenIds + past; ++i) {
         request->mutable_stopping()->add_stop_token_ids(i % 9);
       }
     }},
    {"stop_strings",
     [](auto* request, int past) {
       for (size_t i = 0; i < quire::kMaxStopStrings + static_cast<size_t>(past); ++i) {
         request->mutable_stopping()->add_stop(std::string(1, static_cast<char>('a' + i)));
       }
     }},
    {"stop_string_bytes",
     [](auto* request, int past) {
       request->mutable_stopping()->add_stop(
           std::string(quire::kMaxStopStringBytes + static_cast<size_t>(past), 'a'));
     }},
    {"top_k",
     [](auto* request, int past) {
       request->mutable_sampling()->set_top_k(quire::kTinyVocabSize + past);
     }},
    {"logit_bias",
     [](auto* request, int past) {
       request->mutable_sampling()->add_logit_bias()->set_token_id(quire::kTinyVocabSize - 1 +
                                                                   past);
     }},
    {"logprobs",
     [](auto* request, int past) {
       request->mutable_response()->set_logprobs(quire::kMaxLogprobs + past);
     }},
    {"sequences",
     [](auto* request, int past) {
       Sample(request);
       request->set_n(quire::kMaxSequencesPerRequest + past);
     }},
    {"best_of",
     [](auto* request, int past) {
       Sample(request);
       request->set_best_of(quire::kMaxSequencesPerRequest + past);
     }},
    {"fewest_best_of",
     [](auto* request, int past) {
       Sample(request);
       request->set_n(3);
       request->set_best_of(3 - past);
     }},
    {"beams",
     [](auto* request, int past) {
       request->mutable_beam_search()->set_num_beams(quire::BeamSearchParams::kMaxBeams + past);
     }},
    {"fewest_beams",
     [](auto* request, int past) {
       request->set_n(3);
       request->mutable_beam_search()->set_num_beams(3 - past);
     }},
    {"priority",
     [](auto* request, int past) { request->set_priority(quire::kMaxPriority + past); }},
    {"first_priority",
     [](auto* request, int past) { request->set_priority(-quire::kMaxPriority - past); }},
    {"least_priority",
     [](auto* request, int past) {
       request->set_priority(past == 0 ? 0 : std::numeric_limits<int32_t>::min());
     }},
    {"tenant",
     [](auto* request, int past) {
       request->set_tenant(std::string(quire::kMaxTenantBytes + static_cast<size_t>(past), 't'));
     }},
    {"cache_salt",
     [](auto* request, int past) {
       request->set_cache_salt(
           std::string(quire::kMaxCacheSaltBytes + static_cast<size_t>(past), 's'));
     }},
    {"request_id",
     [](auto* request, int past) {
       request->set_request_id(
           std::string(quire::kMaxRequestIdBytes + static_cast<size_t>(past), 'r'));
     }},
    {"timeout", [](auto* request, int past) { request->set_timeout_ms(1 - past); }},
    {"resumed_token",
     [](auto* request, int past) {
       SetResumable(request);
       request->mutable_resume()->add_sequences()->add_token_ids(quire::kTinyVocabSize - 1 + past);
     }},
    {"resumed_length",
     [](auto* request, int past) {
       SetResumable(request);
       request->mutable_resume()->add_sequences()->mutable_token_ids()->Resize(8 + past, 1);
     }},
};

}  // namespace

void quire::WriteRequestSeeds() {
  quire::v1::GenerateRequest text;
  text.set_request_id("a-1");
  text.set_model("tiny");
  text.set_text("one day");
  text.mutable_stopping()->add_stop(std::string(1, 'z'));
  text.mutable_stopping()->add_stop_token_ids(4);
  text.mutable_stopping()->set_min_tokens(2);
  text.mutable_response()->set_logprobs(3);
  text.mutable_response()->set_prompt_logprobs(2);
  text.set_timeout_ms(100);
  text.set_cache_salt("salt");
  text.set_tenant("t");
  text.set_priority(-3);
  WriteRequest("text", text);

  quire::v1::GenerateRequest sampled = TokensRequest();
  quire::v1::SamplingParams& sampling = *sampled.mutable_sampling();
  sampling.set_temperature(0.5F);
  sampling.set_top_k(4);
  sampling.set_top_p(0.5F);
  sampling.set_min_p(0.1F);
  sampling.set_repetition_penalty(1.5F);
  sampling.set_seed(9);
  sampling.add_logit_bias()->set_token_id(3);
  sampled.set_n(2);
  sampled.set_best_of(4);
  WriteRequest("best_of", sampled);

  quire::v1::GenerateRequest beams = TokensRequest();
  beams.mutable_beam_search()->set_num_beams(4);
  beams.mutable_beam_search()->set_length_penalty(-1.0F);
  beams.mutable_beam_search()->set_early_stopping(quire::v1::EARLY_STOPPING_NEVER);
  beams.set_n(2);
  WriteRequest("beams", beams);

  quire::v1::GenerateRequest resumed = TokensRequest();
  resumed.set_n(2);
  quire::v1::Resume& resume = *resumed.mutable_resume();
  resume.set_seed(7);
  resume.set_determinism_fingerprint("numbers");
  resume.set_max_tokens(9);
  resume.add_sequences()->add_token_ids(5);
  resume.add_sequences()->set_has_ended(true);
  WriteRequest("resume", resumed);

  for (const RequestBound& bound : kRequestBounds) {
    for (int past : {0, 1}) {
      quire::v1::GenerateRequest request = TokensRequest();
      bound.set(&request, past);
      WriteRequest(quire::NameOfSeed(bound.name, past), request, bound.server);
    }
  }
}
