#include "deploy/cli/sim_command.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "deploy/cli/describe_error.h"
#include "deploy/cli/flag_table.h"
#include "scheduler/sim/figure.h"
#include "scheduler/sim/paper_figures.h"
#include "scheduler/sim/simulation.h"
#include "scheduler/sim/svg_plot.h"
#include "scheduler/sim/trace.h"

namespace quire {
namespace {

constexpr char kSimUsage[] =
    R"(usage: quire sim [flags]         reproduce the paper's tables and figures, beside its numbers
       quire sim run [flags]     run one simulation

quire sim:
    --figures A,B,...      default all: table1,fig2,fig12,fig13,fig14,fig15,fig16,fig17,fig18b,
                           fig19,preemption (our own),vattention (the vAttention paper's)
    --output-dir DIR       write CSV and SVG files there
    --seed N               seed of lengths and arrivals; default 1
    --trace-minutes X      length of the longest trace; default 60, as in the paper

quire sim run:
    --platform NAME        default a100-opt-13b; an unknown name lists all
    --policy NAME          paged (default) | orca-max | orca-pow2 | orca-oracle |
                           faster-transformer
    --dataset NAME         sharegpt (default) | alpaca | chat | translation | arxiv-online |
                           arxiv-offline: synthetic lengths. The last two need --max-model-len
                           and --max-num-batched-tokens. The 427 requests of arxiv-offline all
                           arrive at the start
    --trace-file FILE      replaces the dataset; lines of arrival_s,prompt_tokens,output_tokens
    --request-rate X       Poisson arrivals per second; default 1
    --trace-minutes X      default 60
    --seed N               default 1
    --block-size N         default 16
    --max-num-seqs N       default 256
    --max-num-batched-tokens N   default 2560
    --max-model-len N      default 2048
    --enable-prefix-caching      paged only
    --preemption-mode MODE       paged only: recompute (default) | swap | auto
    --target-inter-token-ms N    paged only, as in quire serve: 0 is auto, -1 (default) is none
    --link-speed X               multiplies the rate of the link to the host; default 1
    --layer-major                store a block in pieces, two a layer, as in the paper: more
                                 copies for each swap
    --shared-prefix N      tokens that all prompts begin with; default 0
    --requests-csv FILE    write one CSV line for each request
)";

// Upper bound on --trace-minutes: a day. The requests of much longer traces would not fit in
// memory.
constexpr double kMaxTraceMinutes = 24 * 60;
constexpr double kMaxRequests = 10e6;

absl::Status CheckMinutes(double minutes) {
  if (!(minutes > 0 && minutes <= kMaxTraceMinutes)) {
    return absl::InvalidArgumentError("--trace-minutes must be above 0 and at most 1440");
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  }
  return absl::OkStatus();
}

struct FiguresOptions {
  std::vector<std::string> names = FigureNames();
  std::string output_dir;
  FigureOptions figure;
};

absl::StatusOr<FiguresOptions> ParseFigures(const std::vector<std::string>& args) {
  FiguresOptions o;
  FlagTable flags;
  flags.Text("figures", [&](const std::string& v) {
    o.names = v == "all" ? FigureNames() : absl::StrSplit(v, ',');
  });
  flags.Text("output-dir", [&](const std::string& v) { o.output_dir = v; });
  flags.Uint64("seed", [&](uint64_t n) { o.figure.seed = n; });
  flags.Double("trace-minutes", [&](double x) { o.figure.trace_minutes = x; });
  QUIRE_RETURN_IF_ERROR(flags.Parse(args));
  QUIRE_RETURN_IF_ERROR(CheckMinutes(o.figure.trace_minutes));
  for (const std::string& name : o.names) {
    if (std::find(FigureNames().begin(), FigureNames().end(), name) == FigureNames().end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--figures: unknown figure ", name, "; allowed: ", absl::StrJoin(FigureNames(), ", ")));
    }
  }
  return o;
}

absl::Status WriteFigure(const std::string& dir, const std::string& name, const Figure& figure) {
  const std::filesystem::path folder(dir);
  QUIRE_RETURN_IF_ERROR(WriteFile(folder / (name + ".csv"), FormatRowsCsv(figure)));
  for (const Plot& plot : figure.plots) {
    QUIRE_RETURN_IF_ERROR(WriteFile(folder / (plot.file_name + "-plot.csv"), FormatPlotCsv(plot)));
    QUIRE_RETURN_IF_ERROR(WriteFile(folder / (plot.file_name + ".svg"), DrawSvg(plot)));
  }
  return absl::OkStatus();
}

absl::Status MakeFigures(const FiguresOptions& options) {
  if (!options.output_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.output_dir, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat(options.output_dir, ": cannot be created"));
    }
  }
  std::printf("Lengths are synthetic (seed %llu). Traces last at most %g minutes.\n",
              static_cast<unsigned long long>(options.figure.seed),
              options.figure.trace_minutes);
  int num_match = 0;
  int num_miss = 0;
  for (const std::string& name : options.names) {
    absl::StatusOr<Figure> figure = MakeFigure(name, options.figure);
    QUIRE_RETURN_IF_ERROR(figure.status());
    std::printf("\n%s", FormatTable(*figure).c_str());
    std::fflush(stdout);
    for (const FigureRow& row : figure->rows) {
      num_match += row.verdict == Verdict::kMatch ? 1 : 0;
      num_miss += row.verdict == Verdict::kMiss ? 1 : 0;
    }
    if (!options.output_dir.empty()) {
      QUIRE_RETURN_IF_ERROR(WriteFigure(options.output_dir, name, *figure));
    }
  }
  std::printf("\n%d match, %d miss. scheduler/sim/README.md says why.\n", num_match, num_miss);
  return absl::OkStatus();
}

struct RunOptions {
  SimConfig config;
  std::string platform = "a100-opt-13b";
  std::string policy = "paged";
  std::string dataset = "sharegpt";
  std::string trace_file;
  std::string requests_csv;
  TraceOptions trace;
  double trace_minutes = 60;
  std::string preemption_mode = "recompute";
  int32_t target_inter_token_ms = -1;
  double link_speed = 1;
  int32_t shared_prefix_tokens = 0;
};

constexpr char kOfflineDataset[] = "arxiv-offline";

// Returns the distribution of prompt and output lengths of a dataset whose requests arrive over
// time and are independent of each other. Returns nullopt for other names.
std::optional<LengthShape> LengthsOf(std::string_view dataset) {
  if (dataset == "sharegpt") {
    return ShareGptLike();
  }
  if (dataset == "alpaca") {
    return AlpacaLike();
  }
  if (dataset == "translation") {
    return TranslationLike();
  }
  if (dataset == "arxiv-online") {
    return ArxivOnlineLike();
  }
  return std::nullopt;
}

absl::Status CheckRun(RunOptions& o) {
  QUIRE_RETURN_IF_ERROR(CheckMinutes(o.trace_minutes));
  absl::StatusOr<Platform> platform = FindPlatform(o.platform);
  QUIRE_RETURN_IF_ERROR(platform.status());
  o.config.platform = *platform;
  absl::StatusOr<MemoryPolicy> policy = ParseMemoryPolicy(o.policy);
  QUIRE_RETURN_IF_ERROR(policy.status());
  o.config.policy = *policy;
  if (o.dataset != "chat" && o.dataset != kOfflineDataset && !LengthsOf(o.dataset).has_value()) {
    return absl::InvalidArgumentError(
        "--dataset must be sharegpt, alpaca, chat, translation, arxiv-online or arxiv-offline");
  }
  const std::optional<PreemptionMode> mode = ParsePreemptionMode(o.preemption_mode);
  if (!mode.has_value()) {
    return absl::InvalidArgumentError("--preemption-mode must be recompute, swap or auto");
  }
  o.config.preemption_mode = *mode;
  if (o.target_inter_token_ms < -1 || o.target_inter_token_ms > 3'600'000) {
    return absl::InvalidArgumentError("--target-inter-token-ms must be from -1 to 3600000");
  }
  if (o.target_inter_token_ms >= 0) {
    o.config.target_inter_token = o.target_inter_token_ms * kNanosPerMilli;
  }
  if (!(o.link_speed >= 0.001 && o.link_speed <= 1000)) {
    return absl::InvalidArgumentError("--link-speed must be from 0.001 to 1000");
  }
  o.config.platform.gpu.host_rate *= o.link_speed;
  o.trace.duration_s = 60 * o.trace_minutes;
  if (!(o.trace.requests_per_second > 0 &&
        o.trace.requests_per_second * o.trace.duration_s <= kMaxRequests)) {
    return absl::InvalidArgumentError(
        "--request-rate must be above 0, and so low that a trace has at most 10 million requests");
  }
  if (o.shared_prefix_tokens < 0 || o.shared_prefix_tokens > (1 << 20)) {
    return absl::InvalidArgumentError("--shared-prefix must be from 0 to 1048576");
  }
  const bool has_prefix = o.trace_file.empty() && o.dataset != kOfflineDataset;
  if (!has_prefix && o.shared_prefix_tokens > 0) {
    return absl::InvalidArgumentError(
        "--shared-prefix cannot be used with --trace-file or arxiv-offline");
  }
  return absl::OkStatus();
}

absl::StatusOr<RunOptions> ParseRun(const std::vector<std::string>& args) {
  RunOptions o;
  FlagTable flags;
  flags.Text("platform", [&](const std::string& v) { o.platform = v; });
  flags.Text("policy", [&](const std::string& v) { o.policy = v; });
  flags.Text("dataset", [&](const std::string& v) { o.dataset = v; });
  flags.Text("trace-file", [&](const std::string& v) { o.trace_file = v; });
  flags.Text("requests-csv", [&](const std::string& v) { o.requests_csv = v; });
  flags.Double("request-rate", [&](double x) { o.trace.requests_per_second = x; });
  flags.Double("trace-minutes", [&](double x) { o.trace_minutes = x; });
  flags.Uint64("seed", [&](uint64_t n) { o.trace.seed = n; });
  flags.Int32("block-size", [&](int32_t n) { o.config.block_size_tokens = n; });
  flags.Int32("max-num-seqs", [&](int32_t n) { o.config.max_sequences = n; });
  flags.Int32("max-num-batched-tokens", [&](int32_t n) { o.config.max_tokens_per_step = n; });
  flags.Int32("max-model-len", [&](int32_t n) { o.config.max_model_len = n; });
  flags.Switch("enable-prefix-caching", [&] { o.config.prefix_caching = true; });
  flags.Text("preemption-mode", [&](const std::string& v) { o.preemption_mode = v; });
  flags.Int32("target-inter-token-ms", [&](int32_t n) { o.target_inter_token_ms = n; });
  flags.Double("link-speed", [&](double x) { o.link_speed = x; });
  flags.Switch("layer-major", [&] { o.config.layout = BlockLayout::kLayerMajor; });
  flags.Int32("shared-prefix", [&](int32_t n) { o.shared_prefix_tokens = n; });
  QUIRE_RETURN_IF_ERROR(flags.Parse(args));
  QUIRE_RETURN_IF_ERROR(CheckRun(o));
  return o;
}

absl::StatusOr<Trace> TraceOf(const RunOptions& options) {
  if (!options.trace_file.empty()) {
    return ReadTraceFile(options.trace_file);
  }
  TraceOptions trace = options.trace;
  if (options.dataset == kOfflineDataset) {
    trace.lengths = ArxivOfflineLike();
    return OfflineTrace(trace, kArxivOfflineRequests);
  }
  trace.lengths = LengthsOf(options.dataset).value_or(ShareGptLike());
  Trace made = options.dataset == "chat" ? ChatTrace(trace)
                                         : SharedPrefixTrace(trace, options.shared_prefix_tokens);
  if (made.requests.empty()) {
    return absl::InvalidArgumentError(
        "the trace has no requests: raise --request-rate or --trace-minutes");
  }
  return made;
}

std::string RequestsCsv(const Trace& trace, const SimResult& result) {
  std::string csv = "arrival_s,prompt_tokens,output_tokens,finished_s\n";
  constexpr double kSecond = static_cast<double>(kNanosPerSecond);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const SimRequest& request = trace.requests[i];
    absl::StrAppendFormat(&csv,
                          "%.9f,%d,%d,%.9f\n",
                          static_cast<double>(request.arrival) / kSecond,
                          request.prompt_tokens,
                          request.output_tokens,
                          static_cast<double>(result.finished[i]) / kSecond);
  }
  return csv;
}

void PrintResult(const RunOptions& options, const Trace& trace, const SimResult& result) {
  std::printf("platform                     %s\n", options.platform.c_str());
  std::printf("policy                       %s\n", options.policy.c_str());
  std::printf("requests                     %zu\n", trace.requests.size());
  std::printf("steps                        %lld\n", static_cast<long long>(result.num_steps));
  std::printf("virtual time, s              %.3f\n",
              static_cast<double>(result.end) / static_cast<double>(kNanosPerSecond));
  std::printf("normalized latency, s/token  %.4f\n", result.mean_normalized_latency_s);
  std::printf("step time, ms: p50, p99      %.1f, %.1f\n",
              static_cast<double>(result.step_p50) / kNanosPerMilli,
              static_cast<double>(result.step_p99) / kNanosPerMilli);
  std::printf("sequences in a batch         %.2f\n", result.mean_batch);
  std::printf("tokens stored, %%             %.2f\n", 100 * result.mean_memory.stored);
  std::printf("reserved, %%                  %.2f\n", 100 * result.mean_memory.reserved);
  std::printf("internal waste, %%            %.2f\n", 100 * result.mean_memory.internal);
  std::printf("free or lost, %%              %.2f\n", 100 * result.mean_memory.external);
  std::printf("preemptions                  %lld\n",
              static_cast<long long>(result.num_preemptions));
  std::printf("preemptions by swapping      %lld\n",
              static_cast<long long>(result.num_swap_preemptions));
  std::printf("tokens recomputed            %lld\n",
              static_cast<long long>(result.num_recomputed_tokens));
}

absl::Status RunOne(const RunOptions& options) {
  absl::StatusOr<Trace> trace = TraceOf(options);
  QUIRE_RETURN_IF_ERROR(trace.status());
  absl::StatusOr<SimResult> result = RunSimulation(options.config, *trace);
  QUIRE_RETURN_IF_ERROR(result.status());
  PrintResult(options, *trace, *result);
  if (!options.requests_csv.empty()) {
    return WriteFile(options.requests_csv, RequestsCsv(*trace, *result));
  }
  return absl::OkStatus();
}

int Usage(const absl::Status& status) {
  std::fprintf(stderr, "quire sim: %s\n", DescribeError(status).c_str());
  std::fputs(kSimUsage, stderr);
  return kExitUsage;
}

int Finish(const absl::Status& status) {
  if (status.ok()) {
    return 0;
  }
  std::fprintf(stderr, "quire sim: %s\n", DescribeError(status).c_str());
  return 1;
}

}  // namespace

int RunSim(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(kSimUsage, stdout);
    return 0;
  }
  if (!args.empty() && args[0] == "run") {
    absl::StatusOr<RunOptions> options = ParseRun({args.begin() + 1, args.end()});
    return options.ok() ? Finish(RunOne(*options)) : Usage(options.status());
  }
  absl::StatusOr<FiguresOptions> options = ParseFigures(args);
  return options.ok() ? Finish(MakeFigures(*options)) : Usage(options.status());
}

}  // namespace quire
