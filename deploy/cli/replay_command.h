// `quire replay FILE`: feeds a step log (--step-log of the scheduler) to the production scheduler
// core and compares every plan and all output with the log. Prints a summary of the log and the
// first difference.
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_REPLAY_COMMAND_H_
#define QUIRE_DEPLOY_CLI_REPLAY_COMMAND_H_

#include <string>
#include <vector>

namespace quire {

// Returns the exit code: 0 if everything is identical, where a last record that was cut short does
// not count; 1 if something differs, or the file is damaged, no step log or of another version; 2
// for bad arguments.
int RunReplay(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_REPLAY_COMMAND_H_
