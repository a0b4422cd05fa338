// `quire top --admin ADDR`: shows a live view of a server in the terminal: KV blocks and their
// holders (requests and pinned prefixes), queues, tokens a second, and the share of time that each
// phase of the steps takes.
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_TOP_COMMAND_H_
#define QUIRE_DEPLOY_CLI_TOP_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "deploy/cli/server_access.h"

namespace quire {

struct TopOptions {
  std::string admin;
  ServerAccess access;
  double interval_seconds = 1;
  bool once = false;
};

// Errors: kInvalidArgument for an unknown or missing flag, and for a value out of range.
absl::StatusOr<TopOptions> ParseTopArguments(const std::vector<std::string>& args);

// Returns the exit code of the program.
int RunTop(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_TOP_COMMAND_H_
