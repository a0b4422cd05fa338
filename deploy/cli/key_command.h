// `quire key --tenant NAME`: prints a new API key, and the line that a server's file of keys needs
// for it (common/wire/api_keys.h). With --hash, prints the line for an existing key.
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_KEY_COMMAND_H_
#define QUIRE_DEPLOY_CLI_KEY_COMMAND_H_

#include <string>
#include <vector>

namespace quire {

// Returns the exit code of the program.
int RunKey(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_KEY_COMMAND_H_
