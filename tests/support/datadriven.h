// A scenario file is a list of blocks: commands, a line "----", and the exact expected output.
//
//   # A comment belongs to the block below it.
//   add id=1 prompt=8
//   step
//   ----
//   plan 1
//
// A blank line ends a block. The output of a block is the concatenated output of its commands. With
// --rewrite a test writes the actual output into the files, and the author reviews the diff.
//
// Thread safety: for tests, one thread.
// Source:        the datadriven tests of etcd raft and CockroachDB.
#ifndef QUIRE_TESTS_SUPPORT_DATADRIVEN_H_
#define QUIRE_TESTS_SUPPORT_DATADRIVEN_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// One command line: a name, then key=value arguments.
class ScenarioCommand {
 public:
  // Fails the running test if an argument is malformed.
  explicit ScenarioCommand(std::string_view line);

  const std::string& name() const { return name_; }
  bool Has(const std::string& key) const { return arguments_.count(key) > 0; }
  std::string Text(const std::string& key, const std::string& fallback) const;
  int64_t Int(const std::string& key, int64_t fallback) const;
  double Number(const std::string& key, double fallback) const;
  std::vector<int32_t> Ints(const std::string& key) const;  // parses "1,2,3"; empty if absent
  // Returns keys that the handler never read, so that a misspelled argument is noticed.
  std::vector<std::string> UnusedKeys() const;

 private:
  std::string name_;
  std::map<std::string, std::string> arguments_;
  mutable std::map<std::string, bool> was_used_;
};

// Executes a command and returns its output: whole lines, each with its line end.
using ScenarioHandler = std::function<std::string(const ScenarioCommand&)>;

// Runs the commands of a file. If the output of a block differs from the file, fails the running
// test or, with `rewrite`, changes the file.
void RunScenario(const std::filesystem::path& file, const ScenarioHandler& handler, bool rewrite);

// Returns the *.txt files of a folder, sorted by name.
std::vector<std::filesystem::path> ScenarioFilesIn(const std::filesystem::path& folder);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_DATADRIVEN_H_
