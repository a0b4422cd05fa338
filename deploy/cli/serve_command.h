// `quire serve --model MODEL [flags]`: runs a gateway, a scheduler and its workers as child
// processes.
//
// When the server is ready for the first time, `quire serve` prints to standard output the HTTP
// address of each worker that has one ("quire: worker 0 http=HOST:PORT"), and then:
//   quire: ready grpc=HOST:PORT http=HOST:PORT
// SIGINT, SIGTERM and SIGHUP let the scheduler finish accepted requests, then stop the workers. A
// second SIGINT or SIGTERM, at least a second later, ends these requests. A program that dies or
// hangs is started again (supervisor.h).
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_SERVE_COMMAND_H_
#define QUIRE_DEPLOY_CLI_SERVE_COMMAND_H_

#include <string>
#include <vector>

namespace quire {

// Returns the exit code; README.md in this folder lists the codes.
int RunServe(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SERVE_COMMAND_H_
