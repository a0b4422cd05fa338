#include "deploy/cli/top_command.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <grpcpp/client_context.h>

#include "proto/v1/admin.grpc.pb.h"

#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "common/wire/grpc_status.h"
#include "deploy/cli/describe_error.h"
#include "deploy/cli/flag_table.h"
#include "deploy/cli/live_terminal.h"
#include "deploy/cli/top_frame.h"
#include "deploy/cli/top_history.h"

namespace quire {
namespace {

constexpr double kMinIntervalSeconds = 0.25;  // a server updates its state only once in this time
constexpr double kMaxIntervalSeconds = 3600;
constexpr std::chrono::seconds kTimeout(3);
constexpr std::chrono::milliseconds kConnectWait(250);
constexpr absl::Duration kKeyWait = absl::Milliseconds(10);

constexpr char kTopUsage[] =
    R"(usage: quire top --admin ADDR [flags]

Shows the state of a server that runs with --admin-address ADDR: KV blocks and the requests that
hold them, queues, tokens per second, and the share of each phase in the time of steps. q or Ctrl-C
quits. If standard output is not a terminal, prints a line of key=value pairs every --interval. Uses
no color if the environment variable NO_COLOR is set.

    --admin HOST:PORT | unix:PATH
    --interval SECONDS               time between two updates; default 1, at least 0.25
    --once                           print one frame, after one interval, and exit
)";

class Server {
 public:
  explicit Server(const AdminServer& server)
      : channel_(server.channel),
        stub_(v1::AdminService::NewStub(server.channel)),
        api_key_(server.api_key) {}

  absl::StatusOr<v1::GetStateResponse> Ask() const {
    grpc::ClientContext context;
    return Ask(context);
  }
  // Like Ask(), with a context by which another thread may cancel the call.
  absl::StatusOr<v1::GetStateResponse> Ask(grpc::ClientContext& context) const {
    // gRPC reconnects only while a thread waits inside gRPC, so wait here for the connection.
    channel_->WaitForConnected(std::chrono::system_clock::now() + kConnectWait);
    AddApiKey(api_key_, context);
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    v1::GetStateResponse state;
    QUIRE_RETURN_IF_ERROR(FromGrpcStatus(stub_->GetState(&context, {}, &state)));
    return state;
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AdminService::Stub> stub_;
  std::string api_key_;
};

std::string Environment(const char* name) {
  const char* value = ::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
  return value == nullptr ? "" : value;
}

// Checks the variables in the order in which the C library does.
bool IsUtf8Locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string locale = absl::AsciiStrToLower(Environment(name));
    if (!locale.empty()) {
      return absl::StrContains(locale, "utf-8") || absl::StrContains(locale, "utf8");
    }
  }
  return false;
}

bool IsTerminal() { return ::isatty(STDOUT_FILENO) != 0 && Environment("TERM") != "dumb"; }

FrameStyle StyleOf(const TerminalSize& size) {
  return {.width = size.columns,
          .height = size.lines,
          .has_color = IsTerminal() && Environment("NO_COLOR").empty(),
          .has_unicode = IsTerminal() && IsUtf8Locale()};
}

void PrintError(const absl::Status& status) {
  std::fprintf(stderr, "quire: top: %s\n", Printable(DescribeError(status)).c_str());
}

// Prints one frame. Asks the server twice, because rates need two answers.
int RunOnce(const Server& server, const TopOptions& options) {
  TopHistory history;
  for (int i = 0; i < 2; ++i) {
    if (i > 0) {
      absl::SleepFor(absl::Seconds(options.interval_seconds));
    }
    absl::StatusOr<v1::GetStateResponse> state = server.Ask();
    if (!state.ok()) {
      PrintError(state.status());
      return 1;
    }
    history.Add(*std::move(state));
  }
  FrameStyle style = StyleOf(CurrentTerminalSize());
  style.height = 0;
  std::fputs(TopFrame(history, options.admin, "", style).c_str(), stdout);
  return 0;
}

// Prints a line every interval, until standard output fails.
int RunLines(const Server& server, const TopOptions& options) {
  TopHistory history;
  for (;;) {
    absl::StatusOr<v1::GetStateResponse> state = server.Ask();
    if (state.ok()) {
      history.Add(*std::move(state));
      std::fputs(TopLine(history).c_str(), stdout);
      if (std::fflush(stdout) != 0) {
        return 1;
      }
    } else {
      PrintError(state.status());
    }
    absl::SleepFor(absl::Seconds(options.interval_seconds));
  }
}

// Asks the server, and reads keys during the call. Returns nullopt if the user wants to quit.
std::optional<absl::StatusOr<v1::GetStateResponse>> AskBetweenKeys(const Server& server,
                                                                   const LiveTerminal& terminal) {
  grpc::ClientContext context;
  auto answer = std::async(std::launch::async, [&] { return server.Ask(context); });
  while (answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (terminal.WaitForKey(kKeyWait) == 'q') {
      context.TryCancel();
      return std::nullopt;
    }
  }
  return answer.get();
}

// Shows frames until the user quits. Dials again after a failure, because the TLS files may have
// changed.
int RunLive(Server server, const TopOptions& options) {
  const LiveTerminal terminal;
  TopHistory history;
  for (std::string trouble = "connecting";;) {
    const absl::Time next = absl::Now() + absl::Seconds(options.interval_seconds);
    auto state = AskBetweenKeys(server, terminal);
    if (!state.has_value()) {
      return 0;
    }
    if (state->ok()) {
      history.Add(**std::move(state));
      trouble.clear();
    } else {
      trouble = DescribeError(state->status());
      if (const auto dialed = DialAdmin(options.admin, options.access); dialed.ok()) {
        server = Server(*dialed);
      }
    }
    // WaitForKey also returns when the terminal's size changes. The loop then draws anew.
    do {
      terminal.Draw(TopFrame(history, options.admin, trouble, StyleOf(CurrentTerminalSize())));
      if (terminal.WaitForKey(std::max(next - absl::Now(), absl::Milliseconds(100))) == 'q') {
        return 0;
      }
    } while (absl::Now() < next);
  }
}

}  // namespace

absl::StatusOr<TopOptions> ParseTopArguments(const std::vector<std::string>& args) {
  TopOptions options;
  FlagTable flags;
  AddServerAccessFlags(options.access, flags);
  flags.Text("admin", [&](const std::string& v) { options.admin = v; });
  flags.Double("interval", [&](double seconds) { options.interval_seconds = seconds; });
  flags.Switch("once", [&] { options.once = true; });
  QUIRE_RETURN_IF_ERROR(flags.Parse(args));
  if (options.admin.empty()) {
    return absl::InvalidArgumentError("--admin HOST:PORT or unix:PATH is required");
  }
  // The negated comparison refuses NaN too.
  if (!(options.interval_seconds >= kMinIntervalSeconds &&
        options.interval_seconds <= kMaxIntervalSeconds)) {
    return absl::InvalidArgumentError("--interval must be from 0.25 to 3600 seconds");
  }
  return options;
}

int RunTop(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(kTopUsage, stdout);
    std::fputs(kServerAccessUsage, stdout);
    return 0;
  }
  const absl::StatusOr<TopOptions> options = ParseTopArguments(args);
  const auto dialed = options.ok() ? DialAdmin(options->admin, options->access)
                                   : absl::StatusOr<AdminServer>(options.status());
  if (!dialed.ok()) {
    std::fprintf(stderr, "quire: top: %s\n", DescribeError(dialed.status()).c_str());
    return kExitUsage;
  }
  Server server(*dialed);
  if (options->once) {
    return RunOnce(server, *options);
  }
  return IsTerminal() ? RunLive(std::move(server), *options) : RunLines(server, *options);
}

}  // namespace quire
