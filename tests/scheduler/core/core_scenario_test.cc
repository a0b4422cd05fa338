// Every file of tests/scheduler/scenarios is one test. After a change that is meant, run
//   scheduler_core_scenario_test --rewrite
// and review the diff.
#include <filesystem>
#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "tests/scheduler/core/scenario_runner.h"
#include "tests/support/datadriven.h"

namespace quire {
namespace {

class CoreScenarioTest : public ::testing::Test {
 public:
  CoreScenarioTest(std::filesystem::path file, bool rewrite)
      : file_(std::move(file)), rewrite_(rewrite) {}

  void TestBody() override {
    ScenarioRunner runner;
    RunScenario(
        file_, [&runner](const ScenarioCommand& command) { return runner.Run(command); }, rewrite_);
  }

 private:
  std::filesystem::path file_;
  bool rewrite_;
};

void RegisterScenarios(bool rewrite) {
  for (const std::filesystem::path& file : ScenarioFilesIn(QUIRE_SCENARIO_FOLDER)) {
    ::testing::RegisterTest(
        "CoreScenarioTest",
        file.stem().c_str(),
        nullptr,
        nullptr,
        __FILE__,
        __LINE__,
        [file, rewrite]() -> ::testing::Test* { return new CoreScenarioTest(file, rewrite); });
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  quire::RegisterScenarios(argc > 1 && std::string(argv[1]) == "--rewrite");
  return RUN_ALL_TESTS();
}
