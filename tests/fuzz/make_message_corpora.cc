// Makes the seeds in tests/fuzz/corpus of the targets whose bytes are messages, from what other
// tests have:
//
//   ninja -C build/cpu-release quire_message_corpora && build/cpu-release/bin/quire_message_corpora
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "proto/v1/generation.pb.h"

#include "common/base/check.h"
#include "common/wire/step_codec.h"
#include "common/wire/worker_protocol.h"
#include "scheduler/rpc/prefix_store.h"
#include "tests/common/step/random_plan.h"
#include "tests/scheduler/core/core_simulation.h"
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
  quire::v1::StepRequest request;
  quire::EncodePlan(plan, &request);
  Write("step_plan", "allowed", request.SerializeAsString());
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
