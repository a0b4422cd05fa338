// `quire replay FILE`: feeds a step log (--step-log of the scheduler) to a SchedulerCore, the class
// that plans steps in the scheduler, and compares every plan and all output with the log. Prints a
// summary of the log and the first difference.
//
// Thread safety: call from main.
#ifndef QUIRE_DEPLOY_CLI_REPLAY_COMMAND_H_
#define QUIRE_DEPLOY_CLI_REPLAY_COMMAND_H_

#include <string>
#include <vector>

namespace quire {

// Returns the exit code: 0 if everything is identical, even if the last record was cut short; 1 if
// something differs, or if the file is not a step log, is damaged, or has another version; 2 for
// bad arguments.
int RunReplay(const std::vector<std::string>& args);

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_REPLAY_COMMAND_H_
