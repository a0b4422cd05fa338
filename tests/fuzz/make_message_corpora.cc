// Makes the seeds in tests/fuzz/corpus of the targets whose bytes are messages, from what other
// tests have:
//
//   ninja -C build/cpu-release quire_message_corpora && build/cpu-release/bin/quire_message_corpora
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "proto/v1/generation.pb.h"

#include "common/base/check.h"
#include "common/model/sampling_params.h"
#include "common/wire/step_codec.h"
#include "common/wire/worker_protocol.h"
#include "scheduler/core/beam_search.h"
#include "scheduler/rpc/generate_request.h"
#include "scheduler/rpc/prefix_store.h"
#include "scheduler/text/stop_matcher.h"
#include "tests/common/step/random_plan.h"
#include "tests/scheduler/core/core_simulation.h"
#include "tests/scheduler/rpc/tiny_served_model.h"
#include "tests/scheduler/step_log/memory_log.h"

namespace {

constexpr int kNumOfAKind = 4;

void Write(const std::string& target, const std::string& name, std::string_view bytes) {
  const std::filesystem::path folder = std::filesystem::path("tests/fuzz/corpus") / target;
  std::filesystem::create_directories(folder);
  std::ofstream file(folder / name, std::ios::binary);
  file << bytes;
  QUIRE_CHECK(file.good());
}

// A number at its bound is allowed, one past it is not: a rule that is off by one lets the second
// one through, and the target finds it in its seeds.
std::string NameOf(const char* bound, int past) {
  return std::string(bound) + (past == 0 ? "_at_bound" : "_past_bound");
}

void WritePlan(const std::string& name, const quire::StepPlan& plan) {
  quire::v1::StepRequest request;
  quire::EncodePlan(plan, &request);
  Write("step_plan", name, request.SerializeAsString());
}

// For the limits and sequences of step_plan_fuzz.cc.
quire::StepPlan AllowedPlan() {
  quire::StepPlan plan{.header = {.scheduler_incarnation = 1, .group_epoch = 2, .step_id = 3}};
  plan.swap_outs = {{.block = 5, .host_block = 0}};
  plan.swap_ins = {{.block = 6, .host_block = 1, .generation = 2}};
  plan.copies = {{.src = 2, .dst = 7}};
  plan.introductions = {{.handle = 2,
                         .token_ids = {1, 2, 3, 4, 5},
                         .num_prompt_tokens = 4,
                         .num_computed_tokens = 4,
                         .block_ids = {9}}};
  plan.introductions[0].sampling.logit_bias = {{3, 1.0F}};
  plan.slices = {{.handle = 0, .num_tokens = 7, .new_block_ids = {4, 8}},
                 {.handle = 1, .num_tokens = 1, .new_block_ids = {}, .forced_token_id = 5},
                 {.handle = 2, .num_tokens = 1, .new_block_ids = {10}}};
  plan.releases = {1};
  return plan;
}

using SetPlanBound = void (*)(quire::StepPlan* plan, int past);
constexpr std::pair<const char*, SetPlanBound> kPlanBounds[] = {
    {"swap_out_block", [](auto* plan, int past) { plan->swap_outs[0].block = 11 + past; }},
    {"swap_out_null_block", [](auto* plan, int past) { plan->swap_outs[0].block = 1 - past; }},
    {"swap_out_host_block", [](auto* plan, int past) { plan->swap_outs[0].host_block = 3 + past; }},
    {"swap_in_block", [](auto* plan, int past) { plan->swap_ins[0].block = 11 + past; }},
    {"swap_in_host_block", [](auto* plan, int past) { plan->swap_ins[0].host_block = 3 + past; }},
    {"negative_host_block", [](auto* plan, int past) { plan->swap_ins[0].host_block = -past; }},
    {"copy_source", [](auto* plan, int past) { plan->copies[0].src = 11 + past; }},
    {"copy_target", [](auto* plan, int past) { plan->copies[0].dst = 11 + past; }},
    {"introduced_handle",
     [](auto* plan, int past) {
       plan->introductions[0].handle = 5 + past;
       plan->slices[2].handle = 5 + past;
     }},
    {"introduced_token",
     [](auto* plan, int past) { plan->introductions[0].token_ids[0] = 49 + past; }},
    {"negative_token", [](auto* plan, int past) { plan->introductions[0].token_ids[0] = -past; }},
    {"prompt_tokens",
     [](auto* plan, int past) { plan->introductions[0].num_prompt_tokens = 5 + past; }},
    {"computed_tokens",
     [](auto* plan, int past) { plan->introductions[0].num_computed_tokens = 4 + past; }},
    {"introduced_block",
     [](auto* plan, int past) { plan->introductions[0].block_ids[0] = 11 + past; }},
    {"introduced_length",
     [](auto* plan, int past) {
       plan->introductions[0].token_ids.resize(32 + past, 1);
       plan->slices[2].num_tokens = 1;
     }},
    {"slice_block", [](auto* plan, int past) { plan->slices[0].new_block_ids[0] = 11 + past; }},
    {"slice_null_block", [](auto* plan, int past) { plan->slices[0].new_block_ids[0] = 1 - past; }},
    {"slice_tokens", [](auto* plan, int past) { plan->slices[0].num_tokens = 7 + past; }},
    {"forced_token", [](auto* plan, int past) { plan->slices[1].forced_token_id = 49 + past; }},
    {"released_handle", [](auto* plan, int past) { plan->releases = {past == 0 ? 2u : 6u}; }},
    {"releases",
     [](auto* plan, int past) {
       plan->releases.assign(static_cast<size_t>(6 + past), 1);
       plan->releases[0] = 0;
     }},
};

// Plans of the core, and numbers that no core would plan.
void WriteSteps() {
  quire::Random random(1);
  for (int i = 0; i < kNumOfAKind; ++i) {
    quire::v1::StepRequest request;
    quire::EncodePlan(quire::RandomPlan(random), &request);
    Write("step_plan", "random_" + std::to_string(i), request.SerializeAsString());
    quire::v1::StepResponse response;
    quire::EncodeResult(quire::RandomResult(random), &response);
    Write("step_result", "random_" + std::to_string(i), response.SerializeAsString());
  }
  WritePlan("allowed", AllowedPlan());
  for (const auto& [name, set] : kPlanBounds) {
    for (int past : {0, 1}) {
      quire::StepPlan plan = AllowedPlan();
      set(&plan, past);
      WritePlan(NameOf(name, past), plan);
    }
  }
}

quire::v1::HandshakeResponse Hello(const std::string& uuid) {
  quire::v1::HandshakeResponse hello;
  hello.set_protocol_version(quire::kWorkerProtocolVersion);
  hello.set_worker_uuid(uuid);
  hello.set_model_hash(77);
  hello.set_weights_sum(5);
  hello.set_block_bytes(64);
  hello.set_num_blocks_max(101);
  hello.set_num_host_blocks_max(50);
  hello.set_kv_cache_dtype(quire::v1::DTYPE_F32);
  hello.set_determinism_fingerprint("cpu-avx512");
  hello.set_vocab_size(100);
  hello.set_rendezvous("unix:/tmp/a");
  return hello;
}

void WriteHandshakes() {
  for (int choice : {0, 1, 6, 13, 28, 64, 128}) {
    std::string bytes(1, static_cast<char>(choice));
    for (const char* uuid : {"one", "two"}) {
      const std::string hello = Hello(uuid).SerializeAsString();
      bytes += static_cast<char>(hello.size());
      bytes += hello;
    }
    Write("handshake", "choice_" + std::to_string(choice), bytes);
  }
  quire::v1::HandshakeResponse negative = Hello("one");
  negative.set_block_bytes(-1);
  std::string bytes = "@";
  for (const std::string& hello :
       {negative.SerializeAsString(), Hello("two").SerializeAsString()}) {
    bytes += static_cast<char>(hello.size());
    bytes += hello;
  }
  Write("handshake", "negative_block_bytes", bytes);
}

// The first byte chooses the server.
void WriteRequest(const std::string& name, const quire::v1::GenerateRequest& request) {
  Write("generate_request", name, '\4' + request.SerializeAsString());
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

// Of a server with a context of 100.
using SetRequestBound = void (*)(quire::v1::GenerateRequest* request, int past);
constexpr std::pair<const char*, SetRequestBound> kRequestBounds[] = {
    {"token_id",
     [](auto* request, int past) {
       request->mutable_token_ids()->set_ids(0, quire::kTinyVocabSize - 1 + past);
     }},
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
       request->mutable_resume()->set_determinism_fingerprint("numbers");
       request->mutable_resume()->set_max_tokens(9);
       request->mutable_resume()->add_sequences()->add_token_ids(quire::kTinyVocabSize - 1 + past);
     }},
    {"resumed_length",
     [](auto* request, int past) {
       request->mutable_resume()->set_determinism_fingerprint("numbers");
       request->mutable_resume()->set_max_tokens(9);
       request->mutable_resume()->add_sequences()->mutable_token_ids()->Resize(8 + past, 1);
     }},
};

void WriteRequests() {
  quire::v1::GenerateRequest text;
  text.set_request_id("a-1");
  text.set_model("tiny");
  text.set_text("one day");
  text.mutable_stopping()->add_stop("z");
  text.mutable_stopping()->add_stop_token_ids(4);
  text.mutable_stopping()->set_min_tokens(2);
  text.mutable_response()->set_logprobs(3);
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

  for (const auto& [name, set] : kRequestBounds) {
    for (int past : {0, 1}) {
      quire::v1::GenerateRequest request = TokensRequest();
      set(&request, past);
      WriteRequest(NameOf(name, past), request);
    }
  }
}

// A choice of 2: each payload behind its size in two bytes.
std::string PayloadsOf(std::string_view log) {
  quire::StepLogEncoder encoder;
  log.remove_prefix(encoder.Head("test").size());
  std::string bytes(1, '\2');
  while (!log.empty()) {
    quire::ByteReader frame(log);
    const uint32_t size = frame.Fixed32();
    bytes += static_cast<char>(size);
    bytes += static_cast<char>(size >> 8);
    bytes += log.substr(16, size);
    log.remove_prefix(16 + size);
  }
  return bytes;
}

void WriteLogs() {
  for (uint64_t seed = 1; seed <= 2 * kNumOfAKind; ++seed) {
    quire::MemoryLog log;
    quire::CoreSimulation simulation(seed, {.sink = &log, .program_version = "test"});
    QUIRE_CHECK(simulation.Run(40).empty());
    Write("step_log", "payloads_" + std::to_string(seed), PayloadsOf(log.bytes));
    if (seed == 1) {
      Write("step_log", "file", '\0' + log.bytes.substr(0, 600));
    }
  }
  const std::string prefixes = quire::EncodePrefixes(
      {{.token_ids = {1, 2, 3}, .cache_salt = ""}, {.token_ids = {70000}, .cache_salt = "salt"}});
  Write("step_log", "prefixes", '\0' + prefixes);
  Write("step_log", "prefix_lines", '\1' + prefixes.substr(prefixes.find('\n') + 1));
}

}  // namespace

int main() {
  WriteSteps();
  WriteHandshakes();
  WriteRequests();
  WriteLogs();
}
