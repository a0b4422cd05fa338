// `quire generate --server ADDR (--prompt TEXT | --prompt-token-ids 1,2,3) [flags]`: sends one
// request and streams the answer to the terminal. With --json the answer is one JSON object for
// each token. The stream survives a restart of the server (deploy/clients/cpp/resuming_client.h).
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_GENERATE_COMMAND_H_
#define QUIRE_DEPLOY_CLI_GENERATE_COMMAND_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/v1/generation.pb.h"

#include "deploy/cli/server_access.h"

namespace quire {

struct GenerateOptions {
  std::string server = "127.0.0.1:50051";  // addresses, separated by commas
  bool json = false;
  bool echo = false;                          // true: print the prompt before the answer
  std::optional<std::string> early_stopping;  // for beam search; value of --early-stopping
  ServerAccess access;
  v1::GenerateRequest request;
};

// Errors: kInvalidArgument for an unknown flag, a value that is not a number, or no prompt. The
// server checks ranges.
absl::StatusOr<GenerateOptions> ParseGenerateArguments(const std::vector<std::string>& args);

// Returns the lines of --json for one response, one line for each token:
//   {"index":0,"position":3,"token_id":17,"text":" cat","logprob":-0.5,"finish_reason":null}
// finish_reason is set on the last line of a sequence. If a response ends a sequence without a new
// token, position and token_id of the sequence's last line are null.
std::string JsonLines(const v1::GenerateResponse& response);

// Returns the exit code: 0; 1 if the request failed; 2 for bad arguments.
int RunGenerate(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_GENERATE_COMMAND_H_
