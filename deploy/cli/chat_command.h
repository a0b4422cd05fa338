// `quire chat [flags]`: a conversation with a model in the terminal, through the HTTP API of
// Quire's gateway or of any other server with OpenAI's API.
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_CHAT_COMMAND_H_
#define QUIRE_DEPLOY_CLI_CHAT_COMMAND_H_

#include <string>
#include <vector>

namespace quire {

// Returns the exit code: 0; 1 if the server's model is not known, or if standard input cannot be
// read; 2 for bad arguments. A failed answer or command gives 1 too, except in a dialog on a
// terminal.
int RunChat(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_CHAT_COMMAND_H_
