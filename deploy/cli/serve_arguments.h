// The command line of `quire serve`, divided between the programs that it starts.
//
// Thread safety: free functions and value types.
#ifndef QUIRE_DEPLOY_CLI_SERVE_ARGUMENTS_H_
#define QUIRE_DEPLOY_CLI_SERVE_ARGUMENTS_H_

#include <cstdint>
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
};

// Flags of the worker alone go to the worker, --model to both, all others to the scheduler. The
// model directory may be the first word. Whether a flag exists is for the programs to say.
// --tensor-parallel-size, or -tp, is serve's own.
// Errors: kInvalidArgument if no model is named, an argument is no flag, a flag is one that serve
// sets itself, or the size is no number from 1 to 8.
absl::StatusOr<ServeArguments> SplitServeArguments(const std::vector<std::string>& args);

// Where a scheduler listens, and the flags with which another one listens there too.
struct SchedulerAddresses {
  Address grpc;
  std::vector<std::string> flags;
};

// Reads "grpc=HOST:PORT http=HOST:PORT", and " admin=ADDRESS" after it.
// Errors: kInvalidArgument.
absl::StatusOr<SchedulerAddresses> ParseSchedulerAddresses(std::string_view text);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SERVE_ARGUMENTS_H_
