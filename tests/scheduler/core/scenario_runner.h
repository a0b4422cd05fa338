// ScenarioRunner gives the commands of scenario files their meaning: one SchedulerCore, one
// FakeWorker, and a clock that moves when told. See ../README.md for the list of commands.
//
// Thread safety: for tests, one thread.
#ifndef QUIRE_TESTS_SCHEDULER_CORE_SCENARIO_RUNNER_H_
#define QUIRE_TESTS_SCHEDULER_CORE_SCENARIO_RUNNER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/core/scheduler_core.h"
#include "tests/support/datadriven.h"
#include "tests/support/fake_worker.h"

namespace quire {

class ScenarioRunner {
 public:
  ScenarioRunner();

  // Returns the command's result in lines. Invariants are checked after each command.
  std::string Run(const ScenarioCommand& command);

 private:
  std::string Config(const ScenarioCommand& command);
  std::string Add(const ScenarioCommand& command);
  std::string Abort(const ScenarioCommand& command);
  std::string Finish(const ScenarioCommand& command);
  std::string Pin(const ScenarioCommand& command);
  std::string Unpin(const ScenarioCommand& command);
  std::string Prefixes(const ScenarioCommand& command);
  std::string Advance(const ScenarioCommand& command);
  std::string Expire(const ScenarioCommand& command);
  std::string Plan(const ScenarioCommand& command);
  std::string Apply(const ScenarioCommand& command);
  std::string Step(const ScenarioCommand& command);
  std::string RunAll(const ScenarioCommand& command);
  std::string LoseWorkers(const ScenarioCommand& command);
  std::string BeginEpoch(const ScenarioCommand& command);
  std::string Stats(const ScenarioCommand& command);

  void ReadLimits(const ScenarioCommand& command);
  std::string PlanQuietly();
  std::string DescribePlan(const StepPlan& plan);
  std::string TakeEvents();

  std::map<std::string, std::function<std::string(const ScenarioCommand&)>> commands_;
  std::optional<SchedulerCore> core_;
  std::optional<FakeWorker> worker_;
  StepLimits limits_;
  uint64_t group_epoch_ = 0;
  Instant now_ = 0;
  std::optional<StepPlan> plan_;
  std::map<SequenceHandle, std::string> name_of_;  // "1/0": sequence 0 of request 1
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_SCENARIO_RUNNER_H_
