#include "deploy/cli/bench_command.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"

#include "proto/v1/generation.grpc.pb.h"

#include "common/base/file_limit.h"
#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "common/flags/flag_check.h"
#include "common/http/http_client.h"
#include "common/wire/address.h"
#include "common/wire/channel.h"
#include "common/wire/grpc_status.h"
#include "deploy/cli/bench_prompts.h"
#include "deploy/cli/describe_error.h"
#include "deploy/cli/flag_table.h"
#include "deploy/cli/grpc_load.h"
#include "deploy/cli/load_generator.h"
#include "deploy/cli/load_report.h"
#include "deploy/cli/openai_load.h"
#include "deploy/cli/openai_server.h"
#include "deploy/cli/server_access.h"

namespace quire {
namespace {

constexpr char kBenchUsage[] =
    R"(usage: quire bench serve [flags]

    --backend NAME                   quire (gRPC, the default), openai (/v1/completions of any
                                     server) or openai-chat (/v1/chat/completions)
    --server HOST:PORT | unix:PATH   of quire; default 127.0.0.1:50051
    --base-url URL                   of the others: http://HOST:PORT, https://HOST:PORT or
                                     unix:PATH; default http://127.0.0.1:8000
    --endpoint PATH                  default: the backend's
    --model NAME                     default: the first of the server's /v1/models
    --dataset-name random|custom     default random
    --dataset-path FILE              custom: JSON lines, {"prompt": "...", "output_tokens": 64},
                                     or "prompt_token_ids": [1, 2, 3] in place of the text
    --random-input-len N             tokens of a random prompt; default 128
    --random-output-len N            output tokens; default 128
    --num-prompts N                  requests; default 100
    --request-rate X                 requests a second; default inf: all at once
    --burstiness X                   default 1: Poisson arrivals; a smaller X is burstier
    --max-concurrency N              limit of concurrent requests (closed loop); default: none
    --timeout-ms N                   deadline of each request; goodput counts requests that meet it
    --ignore-eos                     generate all output tokens, even after an end-of-sequence token
    --temperature X                  default 0
    --seed N                         seed of prompts and arrivals; default 0
    --num-warmups N                  requests sent before the clock starts; default 1
    --metric-percentiles 50,99       percentiles of latencies; default 99
    --save-result                    write the results as JSON
    --result-filename FILE           their file; default quire-bench.json
    --save-detailed                  with --save-result: also write the tokens of each request
)";

// Token ids below this are in every model's vocabulary.
constexpr int32_t kIdsOfEachModel = 256;
// These two bound the memory of all prompts and records to about 1 GiB.
constexpr int64_t kMaxPrompts = 1'000'000;
constexpr int64_t kMaxPromptTokens = int64_t{1} << 27;

struct BenchOptions {
  std::string backend = "quire";
  std::string server = "127.0.0.1:50051";
  std::string base_url = "http://127.0.0.1:8000";
  std::string endpoint;
  std::string model;
  BenchPrompts prompts;
  int32_t num_warmups = 1;
  std::vector<double> percentiles;
  bool save_result = false;
  bool save_detailed = false;
  std::string result_path = "quire-bench.json";
  LoadOptions load;
  ServerAccess access;

  bool is_chat() const { return backend == "openai-chat"; }
};

absl::Status CheckNumbers(const BenchOptions& o) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const BenchPrompts& p = o.prompts;
  QUIRE_RETURN_IF_ERROR(
      CheckFlagRange("random-input-len", p.random_input_tokens, 1, kMaxPromptTokens));
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("random-output-len", p.random_output_tokens, 1, kMax));
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("num-prompts", p.num_prompts, 1, kMaxPrompts));
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("num-warmups", o.num_warmups, 0, kMax));
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("max-concurrency", o.load.max_concurrency, 0, kMax));
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("timeout-ms", o.load.timeout_ms, 0, kMax));
  for (const double percentile : o.percentiles) {
    QUIRE_RETURN_IF_ERROR(
        CheckFlagRange("metric-percentiles", static_cast<int64_t>(percentile), 0, 100));
  }
  const int64_t num_tokens = int64_t{p.num_prompts} * p.random_input_tokens;
  if (p.dataset_name == "random" && num_tokens > kMaxPromptTokens) {
    return FlagError("num-prompts",
                     absl::StrCat("times --random-input-len must be at most ",
                                  kMaxPromptTokens,
                                  " (got ",
                                  num_tokens,
                                  ")"));
  }
  if (o.load.requests_per_second <= 0) {
    return FlagError(
        "request-rate",
        absl::StrCat("must be positive, or inf (got ", o.load.requests_per_second, ")"));
  }
  if (o.load.burstiness <= 0) {
    return FlagError("burstiness", absl::StrCat("must be positive (got ", o.load.burstiness, ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchOptions> ParseBenchArguments(const std::vector<std::string>& args) {
  BenchOptions o;
  FlagTable flags;
  AddServerAccessFlags(o.access, flags);
  flags.Text("backend", [&](const std::string& v) { o.backend = v; });
  flags.Text("server", [&](const std::string& v) { o.server = v; });
  flags.Text("base-url", [&](const std::string& v) { o.base_url = v; });
  flags.Text("endpoint", [&](const std::string& v) { o.endpoint = v; });
  flags.Utf8Text("model", [&](const std::string& v) { o.model = v; });
  flags.Text("dataset-name", [&](const std::string& v) { o.prompts.dataset_name = v; });
  flags.Text("dataset-path", [&](const std::string& v) { o.prompts.dataset_path = v; });
  flags.Int32("random-input-len", [&](int32_t n) { o.prompts.random_input_tokens = n; });
  flags.Int32("random-output-len", [&](int32_t n) { o.prompts.random_output_tokens = n; });
  flags.Int32("num-prompts", [&](int32_t n) { o.prompts.num_prompts = n; });
  flags.Int32("num-warmups", [&](int32_t n) { o.num_warmups = n; });
  flags.DoubleOrInf("request-rate", [&](double x) { o.load.requests_per_second = x; });
  flags.Double("burstiness", [&](double x) { o.load.burstiness = x; });
  flags.Int32("max-concurrency", [&](int32_t n) { o.load.max_concurrency = n; });
  flags.Int32("timeout-ms", [&](int32_t n) { o.load.timeout_ms = n; });
  flags.Uint64("seed", [&](uint64_t n) { o.load.seed = n; });
  flags.Float("temperature", [&](float x) { o.prompts.temperature = x; });
  flags.Switch("ignore-eos", [&] { o.prompts.ignore_eos = true; });
  flags.Int32List("metric-percentiles", [&](int32_t p) { o.percentiles.push_back(p); });
  flags.Switch("save-result", [&] { o.save_result = true; });
  flags.Switch("save-detailed", [&] { o.save_detailed = true; });
  flags.Text("result-filename", [&](const std::string& v) { o.result_path = v; });
  QUIRE_RETURN_IF_ERROR(flags.Parse(args));
  if (o.percentiles.empty()) {
    o.percentiles = {99};
  }
  o.prompts.timeout_ms = o.load.timeout_ms;
  o.prompts.seed = o.load.seed;
  if (o.backend != "quire" && o.backend != "openai" && !o.is_chat()) {
    return absl::InvalidArgumentError("--backend must be quire, openai or openai-chat");
  }
  QUIRE_RETURN_IF_ERROR(CheckNumbers(o));
  if (o.prompts.dataset_name != "random" &&
      (o.prompts.dataset_name != "custom" || o.prompts.dataset_path.empty())) {
    return absl::InvalidArgumentError(
        "--dataset-name must be random, or custom with --dataset-path FILE");
  }
  return o;
}

absl::StatusOr<v1::GetServerInfoResponse> AskServer(const GrpcTarget& target) {
  auto stub = v1::GenerationService::NewStub(target.dial());
  grpc::ClientContext context;
  AddApiKey(target.api_key, context);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::GetServerInfoResponse info;
  QUIRE_RETURN_IF_ERROR(FromGrpcStatus(stub->GetServerInfo(&context, {}, &info)));
  return info;
}

using MakeBackend = std::function<std::unique_ptr<LoadBackend>()>;

struct BenchResult {
  std::vector<RequestRecord> records;
  LoadReport report;
};

// Returns the requests of the dataset. vocab_size: see RandomRequests.
absl::StatusOr<std::vector<v1::GenerateRequest>> RequestsOf(const BenchOptions& options,
                                                            int32_t vocab_size) {
  if (options.prompts.dataset_name == "custom") {
    return CustomRequests(options.prompts, options.is_chat());
  }
  return RandomRequests(options.prompts, vocab_size);
}

BenchResult Measure(const BenchOptions& options, size_t num_requests, const MakeBackend& make) {
  // Uses separate connections for the warm-up, so that the measured load begins without open
  // connections.
  const size_t num_warmups = std::min(static_cast<size_t>(options.num_warmups), num_requests);
  RunLoad(*make(), num_warmups, {.max_concurrency = options.load.max_concurrency});
  BenchResult result;
  const std::unique_ptr<LoadBackend> backend = make();
  const std::clock_t cpu_begin = std::clock();
  result.records = RunLoad(*backend, num_requests, options.load);
  const std::clock_t cpu_end = std::clock();
  result.report = MakeReport(result.records, options.percentiles, options.load.timeout_ms);
  result.report.generator_cpu_seconds = static_cast<double>(cpu_end - cpu_begin) / CLOCKS_PER_SEC;
  for (const RequestRecord& record : result.records) {
    if (!record.status.ok()) {
      std::fprintf(
          stderr, "quire: bench: first failure: %s\n", DescribeError(record.status).c_str());
      break;
    }
  }
  return result;
}

absl::StatusOr<BenchResult> RunGrpcBench(const BenchOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(Address address, ParseAddress(options.server));
  QUIRE_ASSIGN_OR_RETURN(const auto credentials, CredentialsOf(options.access));
  GrpcTarget target = {.dial = [&] { return DialPublic(address, credentials); }, .api_key = ""};
  QUIRE_ASSIGN_OR_RETURN(target.api_key, ApiKeyOf(options.access, address));
  QUIRE_ASSIGN_OR_RETURN(v1::GetServerInfoResponse info, AskServer(target));
  QUIRE_ASSIGN_OR_RETURN(const auto requests, RequestsOf(options, std::max(info.vocab_size(), 1)));
  return Measure(options, requests.size(), [&] {
    return std::make_unique<GrpcLoad>(target, requests, options.load.max_concurrency);
  });
}

absl::StatusOr<BenchResult> RunOpenAiBench(const BenchOptions& options) {
  RaiseFileLimit();  // each request that runs has a connection
  OpenAiTarget target = {.endpoint = options.endpoint, .is_chat = options.is_chat()};
  QUIRE_ASSIGN_OR_RETURN(target.server, OpenAiServerOf(options.base_url, options.access));
  if (target.endpoint.empty()) {
    target.endpoint = target.is_chat ? "/v1/chat/completions" : "/v1/completions";
  }
  OpenAiModel model = {.name = options.model};
  if (model.name.empty()) {
    HttpClient client(target.server.client);
    QUIRE_ASSIGN_OR_RETURN(model, AskModel(client, target.server));
  }
  target.model = model.name;
  QUIRE_ASSIGN_OR_RETURN(
      const auto requests,
      RequestsOf(options, target.is_chat ? 0 : model.vocab_size.value_or(kIdsOfEachModel)));
  return Measure(options, requests.size(), [&] {
    return std::make_unique<OpenAiLoad>(target, requests, options.load.timeout_ms);
  });
}

}  // namespace

int RunBenchServe(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(kBenchUsage, stdout);
    std::fputs(kServerAccessUsage, stdout);
    return 0;
  }
  absl::StatusOr<BenchOptions> options = ParseBenchArguments(args);
  if (!options.ok()) {
    std::fprintf(stderr, "quire: bench serve: %s\n", DescribeError(options.status()).c_str());
    return kExitUsage;
  }
  absl::StatusOr<BenchResult> result =
      options->backend == "quire" ? RunGrpcBench(*options) : RunOpenAiBench(*options);
  if (!result.ok()) {
    std::fprintf(stderr, "quire: bench serve: %s\n", DescribeError(result.status()).c_str());
    return 1;
  }
  std::fputs(FormatTable(result->report, options->load).c_str(), stdout);
  if (options->save_result) {
    std::ofstream file(options->result_path);
    file << FormatJson(
        result->report, options->load, options->save_detailed ? &result->records : nullptr);
    file.close();
    if (!file) {
      std::fprintf(stderr,
                   "quire: bench serve: --result-filename: cannot write %s\n",
                   options->result_path.c_str());
      return 1;
    }
  }
  return result->report.num_successful > 0 ? 0 : 1;
}

}  // namespace quire
