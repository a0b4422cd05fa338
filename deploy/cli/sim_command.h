// `quire sim [flags]`: reproduces tables and figures of the PagedAttention paper in virtual time,
// and prints them beside the paper's numbers. `quire sim run [flags]`: runs one simulation.
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_SIM_COMMAND_H_
#define QUIRE_DEPLOY_CLI_SIM_COMMAND_H_

#include <string>
#include <vector>

namespace quire {

// Returns the exit code: 0 if the simulations ran, even if their numbers differ from the paper's
// numbers; 1 if files cannot be written or a simulation cannot run; 2 for bad arguments.
int RunSim(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SIM_COMMAND_H_
