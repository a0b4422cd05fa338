// The command line of `quire serve`, divided between the programs that it starts.
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
  std::vector<std::string> scheduler;
  std::vector<std::string> worker;  // of each
  int32_t tensor_parallel_size = 1;
  // The HTTP port of rank 0; each rank has the next one, or any free one of its own where this is
  // 0. None: workers have no HTTP port.
  std::string log_format;  // as given, or empty: of our own lines
  std::optional<int32_t> worker_http_port;
};

// Flags of the worker alone go to the worker, --model to both, all others to the scheduler. The
// model directory may be the first word. Whether a flag exists is for the programs to say.
// --allow-insecure-bind goes to both. Serve's own are --tensor-parallel-size, or -tp, and
// --worker-http-port; --worker-http-host is --http-host of the workers.
// Errors: kInvalidArgument if no model is named, an argument is no flag, a flag is one that serve
// sets itself, the size is no number from 1 to 8, or a rank's port would be none.
absl::StatusOr<ServeArguments> SplitServeArguments(const std::vector<std::string>& args);

// Where a scheduler listens, and the flags with which another one listens there too.
struct SchedulerAddresses {
  Address grpc;
  Address http;
  std::vector<std::string> flags;
};

// The flag of a worker for its HTTP port: another process of that rank has the same port. Reads
// "quire_worker: listens listen=ADDRESS http=HOST:PORT". Nothing for other lines.
struct WorkerHttp {
  std::string address;  // HOST:PORT
  std::string flag;
};
std::optional<WorkerHttp> ParseWorkerHttp(std::string_view line);

// Reads "grpc=HOST:PORT http=HOST:PORT", and " admin=ADDRESS" after it.
// Errors: kInvalidArgument.
absl::StatusOr<SchedulerAddresses> ParseSchedulerAddresses(std::string_view text);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SERVE_ARGUMENTS_H_
