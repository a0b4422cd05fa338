#include "deploy/cli/replay_command.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/status/statusor.h"

#include "common/base/printable.h"
#include "common/flags/command_line.h"
#include "deploy/cli/describe_error.h"
#include "scheduler/step_log/replay.h"
#include "scheduler/step_log/step_log_format.h"

namespace quire {
namespace {

constexpr char kReplayUsage[] =
    R"(usage: quire replay FILE

Replays the events of a step log, which `quire serve --step-log FILE` wrote, in the scheduler core,
and compares every plan and all output with the log. Exit code 0: identical; 1: a difference, or
FILE cannot be read. A step log holds prompts and output as plain token ids, and the key of the
block hashes.
)";

void Print(const StepLogReader& log, const ReplayReport& report) {
  const auto number = [](int64_t n) { return static_cast<long long>(n); };
  std::printf("written by   quire %s\n", Printable(log.program_version()).c_str());
  std::printf("records      %lld\n", number(report.num_records));
  std::printf("epochs       %lld\n", number(report.num_epochs));
  std::printf("requests     %lld\n", number(report.num_requests));
  std::printf("steps        %lld\n", number(report.num_steps));
  std::printf("tokens       %lld\n", number(report.num_tokens));
  if (report.is_torn) {
    std::printf("the last record is cut short; all records before it were replayed\n");
  }
  if (!report.difference.empty()) {
    std::printf("DIFFERENT: %s\n", report.difference.c_str());
  } else if (report.damage.ok()) {
    std::printf("identical: every plan and all output\n");
  }
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "quire replay: %s\n", DescribeError(status).c_str());
  return 1;
}

}  // namespace

int RunReplay(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(kReplayUsage, stdout);
    return 0;
  }
  if (args.size() != 1 || args[0].starts_with("-")) {
    std::fprintf(stderr, "quire replay: exactly one FILE is required\n%s", kReplayUsage);
    return kExitUsage;
  }
  std::ifstream file(args[0], std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "quire replay: %s: cannot be read\n", OneLine(args[0]).c_str());
    return 1;
  }
  absl::StatusOr<StepLogReader> log = StepLogReader::Open(&file);
  if (!log.ok()) {
    return Fail(log.status());
  }
  const ReplayReport report = Replay(*log);
  Print(*log, report);
  if (!report.damage.ok()) {
    return Fail(report.damage);
  }
  return report.is_identical() ? 0 : 1;
}

}  // namespace quire
