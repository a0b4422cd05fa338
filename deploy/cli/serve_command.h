// `quire serve --model DIR [flags]`: a scheduler and a worker as child processes, on this machine.
//
// Prints exactly one line on standard output when it can serve:
//   quire: ready grpc=HOST:PORT http=HOST:PORT
// SIGINT and SIGTERM drain the scheduler, then stop the worker. A worker that dies is started again
// (the scheduler keeps every request); a scheduler that dies ends the command.
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_SERVE_COMMAND_H_
#define QUIRE_DEPLOY_CLI_SERVE_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

// How the arguments of `quire serve` are divided between the two programs.
struct ServeArguments {
  std::vector<std::string> scheduler;
  std::vector<std::string> worker;
};

// Errors: kInvalidArgument when no model is named or an argument is not a flag.
absl::StatusOr<ServeArguments> SplitServeArguments(const std::vector<std::string>& args);

// Returns the exit code: 0 after a signal, 2 for bad arguments, 3 for a bad model directory, else
// the failed child's.
int RunServe(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SERVE_COMMAND_H_
