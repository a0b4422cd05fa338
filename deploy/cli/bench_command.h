// `quire bench serve --server ADDR [flags]`: sends requests to a running server and prints the
// table that users know from `vllm bench serve`. The load is an open loop (a rate of arrivals) or a
// closed loop (a number of clients).
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_BENCH_COMMAND_H_
#define QUIRE_DEPLOY_CLI_BENCH_COMMAND_H_

#include <string>
#include <vector>

namespace quire {

// Returns the exit code: 0; 1 if the server cannot be reached or every request failed; 2 for bad
// arguments.
int RunBenchServe(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_BENCH_COMMAND_H_
