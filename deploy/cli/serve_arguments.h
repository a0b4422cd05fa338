// Splits the command line of `quire serve` among the programs that it starts: a gateway, a
// scheduler and its workers.
//
// Thread safety: free functions, safe from any thread.
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
  std::vector<std::string> worker;  // every worker gets these flags
  int32_t tensor_parallel_size = 1;
  std::string log_format;  // value of --log-format, also for `quire serve` itself; empty: not given
  // HTTP port of rank 0; rank r gets this port plus r. 0: each rank gets any free port. nullopt:
  // workers have no HTTP port.
  std::optional<int32_t> worker_http_port;
};

// Splits the flags among the programs that take them:
//   - `quire serve` itself: --tensor-parallel-size (or -tp), --worker-http-port
//   - all programs: --model, --log-format, --allow-insecure-bind
//   - scheduler and gateway: TLS files, API keys, --shutdown-timeout
//   - workers alone, gateway alone: flags that no other program has
//   - gateway, renamed: --http-host and --http-port become --host and --port
//   - workers, renamed: --worker-http-host becomes --http-host
//   - gateway, and scheduler if --admin-address is given: --admin-api-keys-file
//   - scheduler: all other flags. The programs refuse unknown flags.
// The model may also be given as a word without --model.
// Errors: kInvalidArgument if
//   - no model is named, an argument is not a flag, or a renamed flag has no value;
//   - a flag is given that only `quire serve` itself may set;
//   - a host is in brackets, or other machines could reach it without encryption;
//   - --tensor-parallel-size is not from 1 to 8, or a rank's HTTP port is not from 0 to 65535;
//   - --preemption-mode=swap is given with --swap-space=0.
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
  std::string flag;     // "--http-port=PORT", so that the rank's next process has the same port
};
// Reads "quire_worker: listens listen=ADDRESS http=HOST:PORT". Returns nullopt for other lines.
std::optional<WorkerHttp> ParseWorkerHttp(std::string_view line);

// A gateway's addresses, and the flags that give the gateway's next start the same ports.
struct GatewayAddresses {
  std::string api;              // HOST:PORT
  std::optional<Address> http;  // nullopt: no port for metrics and health
  std::vector<std::string> flags;
  bool is_ready = false;  // true: the line says "ready", so clients are served
};
// Reads "quire_gateway: listens api=HOST:PORT[ http=HOST:PORT]", or the same with "ready". Returns
// nullopt for other lines.
std::optional<GatewayAddresses> ParseGatewayAddresses(std::string_view line);

// Reads "grpc=HOST:PORT http=HOST:PORT", optionally followed by " admin=ADDRESS". Errors:
// kInvalidArgument.
absl::StatusOr<SchedulerAddresses> ParseSchedulerAddresses(std::string_view text);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SERVE_ARGUMENTS_H_
