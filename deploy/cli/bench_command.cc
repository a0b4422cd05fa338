#include "deploy/cli/bench_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <random>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"

#include "proto/v1/generation.grpc.pb.h"

#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "common/json/json.h"
#include "common/wire/address.h"
#include "common/wire/channel.h"
#include "common/wire/grpc_status.h"
#include "deploy/cli/describe_error.h"
#include "deploy/cli/flag_table.h"
#include "deploy/cli/load_generator.h"
#include "deploy/cli/load_report.h"
#include "deploy/cli/server_access.h"

namespace quire {
namespace {

constexpr char kUsage[] =
    R"(usage: quire bench serve [flags]

    --server HOST:PORT | unix:PATH   default 127.0.0.1:50051
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

struct BenchOptions {
  std::string server = "127.0.0.1:50051";
  std::string dataset_name = "random";
  std::string dataset_path;
  int32_t random_input_tokens = 128;
  int32_t random_output_tokens = 128;
  int32_t num_prompts = 100;
  int32_t num_warmups = 1;
  bool ignore_eos = false;
  float temperature = 0;
  std::vector<double> percentiles;
  bool save_result = false;
  bool save_detailed = false;
  std::string result_path = "quire-bench.json";
  LoadOptions load;
  ServerAccess access;
};

absl::StatusOr<BenchOptions> ParseArguments(const std::vector<std::string>& args) {
  BenchOptions o;
  FlagTable flags;
  AddServerAccessFlags(o.access, flags);
  flags.Text("server", [&](const std::string& v) { o.server = v; });
  flags.Text("dataset-name", [&](const std::string& v) { o.dataset_name = v; });
  flags.Text("dataset-path", [&](const std::string& v) { o.dataset_path = v; });
  flags.Int32("random-input-len", [&](int32_t n) { o.random_input_tokens = n; });
  flags.Int32("random-output-len", [&](int32_t n) { o.random_output_tokens = n; });
  flags.Int32("num-prompts", [&](int32_t n) { o.num_prompts = n; });
  flags.Int32("num-warmups", [&](int32_t n) { o.num_warmups = n; });
  flags.Double("request-rate", [&](double x) { o.load.requests_per_second = x; });
  flags.Double("burstiness", [&](double x) { o.load.burstiness = x; });
  flags.Int32("max-concurrency", [&](int32_t n) { o.load.max_concurrency = n; });
  flags.Int32("timeout-ms", [&](int32_t n) { o.load.timeout_ms = n; });
  flags.Uint64("seed", [&](uint64_t n) { o.load.seed = n; });
  flags.Float("temperature", [&](float x) { o.temperature = x; });
  flags.Switch("ignore-eos", [&] { o.ignore_eos = true; });
  flags.Int32List("metric-percentiles", [&](int32_t p) { o.percentiles.push_back(p); });
  flags.Switch("save-result", [&] { o.save_result = true; });
  flags.Switch("save-detailed", [&] { o.save_detailed = true; });
  flags.Text("result-filename", [&](const std::string& v) { o.result_path = v; });
  QUIRE_RETURN_IF_ERROR(flags.Parse(args));
  if (o.percentiles.empty()) {
    o.percentiles = {99};
  }
  const bool positive = o.random_input_tokens > 0 && o.random_output_tokens > 0 &&
                        o.num_prompts > 0 && o.num_warmups >= 0 && o.load.burstiness > 0 &&
                        o.load.requests_per_second > 0 && o.load.max_concurrency >= 0 &&
                        o.load.timeout_ms >= 0;
  if (!positive) {
    return absl::InvalidArgumentError(
        "lengths, --num-prompts, --request-rate and --burstiness must be positive; --num-warmups, "
        "--max-concurrency and --timeout-ms must not be negative");
  }
  if (o.dataset_name != "random" && (o.dataset_name != "custom" || o.dataset_path.empty())) {
    return absl::InvalidArgumentError(
        "--dataset-name must be random, or custom with --dataset-path FILE");
  }
  return o;
}

v1::GenerateRequest BaseRequest(const BenchOptions& options, int32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_sampling()->set_temperature(options.temperature);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(options.ignore_eos);
  if (options.load.timeout_ms > 0) {
    request.set_timeout_ms(options.load.timeout_ms);
  }
  return request;
}

std::vector<v1::GenerateRequest> RandomRequests(const BenchOptions& options,
                                                const v1::GetServerInfoResponse& info,
                                                int32_t count) {
  std::mt19937_64 random(options.load.seed);
  std::uniform_int_distribution<int32_t> token(0, std::max(info.vocab_size(), 1) - 1);
  std::vector<v1::GenerateRequest> requests;
  for (int32_t i = 0; i < count; ++i) {
    requests.push_back(BaseRequest(options, options.random_output_tokens));
    for (int32_t j = 0; j < options.random_input_tokens; ++j) {
      requests.back().mutable_token_ids()->add_ids(token(random));
    }
  }
  return requests;
}

// Sets the request's prompt from the line's "prompt", else from its "prompt_token_ids". Returns
// false if neither field is there with values of the right type.
bool SetPrompt(const Json& line, v1::GenerateRequest* request) {
  if (!line.is_object()) {
    return false;
  }
  if (line.contains("prompt") && line["prompt"].is_string()) {
    request->set_text(line["prompt"].get<std::string>());
    return true;
  }
  if (!line.contains("prompt_token_ids") || !line["prompt_token_ids"].is_array()) {
    return false;
  }
  for (const Json& id : line["prompt_token_ids"]) {
    constexpr auto kMaxId = uint64_t{std::numeric_limits<int32_t>::max()};
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxId) {
      return false;
    }
    request->mutable_token_ids()->add_ids(id.get<int32_t>());
  }
  return true;
}

// Returns `count` requests, one for each line of the file that is not empty, in order. If the file
// has fewer such lines than count, starts again with the first one.
absl::StatusOr<std::vector<v1::GenerateRequest>> CustomRequests(const BenchOptions& options,
                                                                int32_t count) {
  std::ifstream file(options.dataset_path);
  std::vector<v1::GenerateRequest> lines;
  int number = 0;  // the line's number in the file
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) {
      continue;
    }
    absl::StatusOr<Json> json = ParseJson(line);
    v1::GenerateRequest request;
    if (!json.ok() || !SetPrompt(*json, &request)) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.dataset_path,
                       " line ",
                       number,
                       ": must be a JSON object with \"prompt\" (text) or "
                       "\"prompt_token_ids\" (a list of token ids)"));
    }
    const Json& tokens = json->contains("output_tokens") ? (*json)["output_tokens"] : Json();
    request.MergeFrom(BaseRequest(
        options,
        tokens.is_number_integer() ? tokens.get<int32_t>() : options.random_output_tokens));
    lines.push_back(std::move(request));
  }
  if (lines.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.dataset_path, ": cannot be read, or has no prompts"));
  }
  std::vector<v1::GenerateRequest> requests;
  requests.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    requests.push_back(lines[static_cast<size_t>(i) % lines.size()]);
  }
  return requests;
}

absl::StatusOr<v1::GetServerInfoResponse> AskServer(const LoadTarget& target) {
  auto stub = v1::GenerationService::NewStub(target.dial());
  grpc::ClientContext context;
  AddApiKey(target.api_key, context);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::GetServerInfoResponse info;
  QUIRE_RETURN_IF_ERROR(FromGrpcStatus(stub->GetServerInfo(&context, {}, &info)));
  return info;
}

struct BenchResult {
  std::vector<RequestRecord> records;
  LoadReport report;
};

absl::StatusOr<BenchResult> RunBench(const BenchOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(Address address, ParseAddress(options.server));
  QUIRE_ASSIGN_OR_RETURN(const auto credentials, CredentialsOf(options.access));
  LoadTarget target = {.dial = [&] { return DialPublic(address, credentials); }, .api_key = ""};
  QUIRE_ASSIGN_OR_RETURN(target.api_key, ApiKeyOf(options.access, address));
  QUIRE_ASSIGN_OR_RETURN(v1::GetServerInfoResponse info, AskServer(target));
  std::vector<v1::GenerateRequest> requests;
  if (options.dataset_name == "random") {
    requests = RandomRequests(options, info, options.num_prompts);
  } else {
    QUIRE_ASSIGN_OR_RETURN(requests, CustomRequests(options, options.num_prompts));
  }
  const auto num_warmups = std::min(static_cast<size_t>(options.num_warmups), requests.size());
  RunLoad(target,
          {requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(num_warmups)},
          {.max_concurrency = options.load.max_concurrency});
  BenchResult result;
  const std::clock_t cpu_begin = std::clock();
  result.records = RunLoad(target, requests, options.load);
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

}  // namespace

int RunBenchServe(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(kUsage, stdout);
    std::fputs(kServerAccessUsage, stdout);
    return 0;
  }
  absl::StatusOr<BenchOptions> options = ParseArguments(args);
  if (!options.ok()) {
    std::fprintf(stderr, "quire: bench serve: %s\n", DescribeError(options.status()).c_str());
    return kExitUsage;
  }
  absl::StatusOr<BenchResult> result = RunBench(*options);
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
