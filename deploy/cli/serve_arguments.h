// Divides the command line of `quire serve` between the programs that it starts: a gateway, a
// scheduler and its workers.
//
// Thread safety: free functions and value types.
#ifndef QUIRE_DEPLOY_CLI_SERVE_ARGUMENTS_H_
#define QUIRE_DEPLOY_CLI_SERVE_ARGUMENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/wire/address.h"

namespace quire {

struct ServeArguments {
  std::vector<std::string> gateway;
  std::vector<std::string> scheduler;
  std::vector<std::string> worker;  // flags of each worker
  int32_t tensor_parallel_size = 1;
  std::string log_format;  // value of --log-format, also for `quire serve` itself; empty: not given
  // HTTP port of rank 0; rank r has this port plus r. 0: each rank has any free port. nullopt:
  // workers have no HTTP port.
  std::optional<int32_t> worker_http_port;
};

// Divides the flags: flags of the worker or the gateway alone go to that program; --model,
// --log-format and --allow-insecure-bind to all programs; TLS files, API keys and
// --shutdown-timeout to scheduler and gateway; all others to the scheduler. The model directory can
// also be given as the first word, without --model. The programs refuse unknown flags. `quire
// serve` itself has the flags --tensor-parallel-size, or -tp, and --worker-http-port. The flags
// --http-host and --http-port become --host and --port of the gateway, and --worker-http-host
// becomes --http-host of the workers. --admin-api-keys-file goes to the gateway, and with
// --admin-address to the scheduler too.
// Errors: kInvalidArgument if no model is named, an argument is not a flag, a flag is one that
// serve itself sets, a host is in brackets or reachable without encryption, a flag that serve
// renames has no value, --tensor-parallel-size is not from 1 to 8, or a rank's port would be above
// 65535.
absl::StatusOr<ServeArguments> SplitServeArguments(const std::vector<std::string>& args);

// A scheduler's addresses, and the flags that give the scheduler's next start the same addresses.
struct SchedulerAddresses {
  Address grpc;
  Address http;
  std::vector<std::string> flags;
};

// A worker's HTTP port.
struct WorkerHttp {
  std::string address;  // HOST:PORT
  std::string flag;     // a flag that gives the rank's next process the same port
};
// Reads "quire_worker: listens listen=ADDRESS http=HOST:PORT". Returns nullopt for other lines.
std::optional<WorkerHttp> ParseWorkerHttp(std::string_view line);

// The addresses of a gateway, and the flags that give its next start the same ports.
struct GatewayAddresses {
  std::string api;              // HOST:PORT
  std::optional<Address> http;  // nullopt: no port for metrics and health
  std::vector<std::string> flags;
  bool is_ready = false;  // the line says that clients are served
};
// Reads "quire_gateway: listens api=HOST:PORT[ http=HOST:PORT]", or the same with "ready". Returns
// nullopt for other lines.
std::optional<GatewayAddresses> ParseGatewayAddresses(std::string_view line);

// Reads "grpc=HOST:PORT http=HOST:PORT", optionally followed by " admin=ADDRESS". Errors:
// kInvalidArgument.
absl::StatusOr<SchedulerAddresses> ParseSchedulerAddresses(std::string_view text);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SERVE_ARGUMENTS_H_
