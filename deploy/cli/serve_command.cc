#include "deploy/cli/serve_command.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "common/base/exit_codes.h"
#include "common/base/file_limit.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/string_view.h"
#include "common/flags/flag_sources.h"
#include "common/flags/process.h"
#include "common/wire/grpc_log.h"
#include "common/wire/worker_address.h"
#include "deploy/cli/serve_arguments.h"
#include "deploy/cli/supervised_child.h"
#include "deploy/cli/supervisor.h"

namespace quire {
namespace {

constexpr char kServeUsage[] =
    R"(usage: quire serve --model MODEL [flags]

Starts a gateway, a scheduler and a worker on this machine. MODEL is a Hugging Face directory or a
GGUF file. With --tensor-parallel-size N (-tp N) it starts N workers and splits the model over them.
A program that dies or hangs is restarted. As soon as clients can send requests, it prints
    quire: ready grpc=HOST:PORT http=HOST:PORT
http= is the address of OpenAI's API (/v1), a page to chat (/), /metrics and /top. SIGTERM and
Ctrl-C let accepted requests finish (--shutdown-timeout), then stop the server. A second signal ends
the remaining requests at once.
Exit codes: 0 stopped by a signal, 1 unusable address or file, 2 bad flags, 3 bad model, 4 too
little memory, 5 device failure. After the ready line only a signal stops the server.

--worker-http-port N gives each worker an HTTP port for metrics and health: rank r has port N + r,
or any free port if N is 0. The ports are on loopback unless --worker-http-host is given.

--flagfile FILE reads flags of all programs from a file, one on each line. --fromenv and
--tryfromenv NAME,... read --NAME from the environment variable FLAGS_NAME.

The flags of all programs are accepted, except those about how the programs reach each other:
--workers, --standby, --listen, --rank, --ranks-on-host, --local-address, --scheduler*,
--worker-ssl-*. Every worker gets the worker's flags. --ssl-*, --api-keys-file and
--shutdown-timeout apply to gateway and scheduler. --host and --port are the scheduler's for gRPC;
--http-host and --http-port are the gateway's.
Flags of the scheduler:

)";

// Makes a private folder for the sockets of scheduler and workers, and removes it at the end. If
// the folder disappears meanwhile, the supervisor makes it again.
class SocketFolder {
 public:
  SocketFolder() {
    std::string pattern = absl::StrCat(
        RuntimeFolder("/quire-XXXXXX/worker7.sock.ranks").value_or("/tmp"), "/quire-XXXXXX");
    if (::mkdtemp(pattern.data()) == nullptr) {
      pattern = "/tmp/quire-XXXXXX";
      path_ = ::mkdtemp(pattern.data()) != nullptr ? pattern : "";
    } else {
      path_ = pattern;
    }
  }
  ~SocketFolder() {
    std::error_code error;
    if (!path_.empty()) {
      std::filesystem::remove_all(path_, error);
    }
  }
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Prints the indented lines of a program's --help text: its flags, without usage and summary.
void PrintFlagsOf(const std::string& program) {
  absl::StatusOr<ChildProcess> child = ChildProcess::Start({program, "--help"});
  if (!child.ok()) {
    std::printf("(%s)\n", std::string(child.status().message()).c_str());
    return;
  }
  for (bool is_over = false; !is_over;) {
    is_over = child->Poll().has_value();
    while (const std::optional<std::string> line = child->TakeLine()) {
      if (line->starts_with(' ')) {
        std::printf("%s\n", line->c_str());
      }
    }
    ::usleep(1'000);
  }
}

int PrintHelp(const std::string& folder) {
  std::fputs(kServeUsage, stdout);
  PrintFlagsOf(folder + "/quire_scheduler");
  std::fputs("\nFlags of the gateway:\n\n", stdout);
  PrintFlagsOf(folder + "/quire_gateway");
  std::fputs("\nFlags of the worker:\n\n", stdout);
  PrintFlagsOf(folder + "/quire_worker");
  return EXIT_SUCCESS;
}

absl::StatusOr<ServeArguments> ReadArguments(const std::vector<std::string>& args) {
  const absl::StatusOr<std::vector<std::string>> expanded = ExpandFlagSources(args);
  if (!expanded.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("serve: ", expanded.status().message()));
  }
  return SplitServeArguments(*expanded);
}

std::vector<Supervisor::Worker> Workers(const ServeArguments& arguments,
                                        const std::string& programs,
                                        const std::string& sockets) {
  const int32_t size = arguments.tensor_parallel_size;
  std::vector<Supervisor::Worker> workers;
  for (int32_t rank = 0; rank < size; ++rank) {
    const Address address = {.unix_path = absl::StrCat(sockets, "/worker", rank, ".sock")};
    std::vector<std::string> argv = {programs + "/quire_worker",
                                     "--listen",
                                     address.ToString(),
                                     absl::StrCat("--rank=", rank),
                                     absl::StrCat("--tensor-parallel-size=", size),
                                     absl::StrCat("--ranks-on-host=", size)};
    if (const auto port = arguments.worker_http_port; port.has_value()) {
      argv.push_back(absl::StrCat("--http-port=", *port == 0 ? 0 : *port + rank));
    }
    argv.insert(argv.end(), arguments.worker.begin(), arguments.worker.end());
    workers.push_back({.argv = std::move(argv), .address = address});
  }
  return workers;
}

}  // namespace

int RunServe(const std::vector<std::string>& args) {
  OpenStandardStreams();
  RaiseFileLimit();
  // Without this call gRPC writes its log to standard error itself. Such a write waits for a slow
  // reader, which would delay restarts.
  SendGrpcLogToOurs();
  const std::string folder = ProgramFolder();
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    return PrintHelp(folder);
  }
  absl::StatusOr<ServeArguments> split = ReadArguments(args);
  if (!split.ok()) {
    std::fprintf(stderr, "quire: %s\n", OneLine(ToStd(split.status().message())).c_str());
    return kExitUsage;
  }
  // The programs refuse formats other than text and json, so `quire serve` does not check this.
  if (split->log_format == "json") {
    SetLogFormat(LogFormat::kJson);
  }
  SocketFolder sockets;
  if (sockets.path().empty()) {
    std::fputs("quire: serve: cannot create a folder in /tmp for the workers' sockets\n", stderr);
    return EXIT_FAILURE;
  }
  const int signal_fd = OpenSignalFd();
  std::vector<Supervisor::Worker> workers = Workers(*split, folder, sockets.path());
  std::vector<std::string> addresses;
  addresses.reserve(workers.size());
  for (const Supervisor::Worker& worker : workers) {
    addresses.push_back(worker.address.ToString());
  }
  const std::string local = absl::StrCat("unix:", sockets.path(), "/scheduler.sock");
  std::vector<std::string> scheduler = {folder + "/quire_scheduler",
                                        "--workers",
                                        absl::StrJoin(addresses, ","),
                                        "--local-address=" + local,
                                        "--http-host=127.0.0.1",
                                        "--http-port=0"};
  scheduler.insert(scheduler.end(), split->scheduler.begin(), split->scheduler.end());
  std::vector<std::string> gateway = {
      folder + "/quire_gateway", "--scheduler=" + local, "--http-host=127.0.0.1", "--http-port=0"};
  gateway.insert(gateway.end(), split->gateway.begin(), split->gateway.end());
  const int code =
      Supervisor(std::move(scheduler), std::move(gateway), std::move(workers), signal_fd).Run();
  ::close(signal_fd);
  return code;
}

}  // namespace quire
