#include "tests/support/datadriven.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

struct Block {
  std::vector<std::string> head;  // comments and commands, verbatim
  std::string expected;
  int line = 0;  // number of the block's first line, from 1
};

std::vector<Block> Parse(std::istream& input) {
  std::vector<Block> blocks;
  Block block;
  bool in_expected = false;
  auto finish = [&] {
    if (!block.head.empty()) {
      blocks.push_back(block);
    }
    block = {};
    in_expected = false;
  };
  std::string line;
  for (int number = 1; std::getline(input, line); ++number) {
    if (line.empty()) {
      finish();
    } else if (line == "----") {
      in_expected = true;
    } else if (in_expected) {
      block.expected += line + "\n";
    } else {
      block.line = block.head.empty() ? number : block.line;
      block.head.push_back(line);
    }
  }
  finish();
  return blocks;
}

bool IsCommand(const std::string& line) { return line[0] != '#'; }

std::string RunBlock(const Block& block, const ScenarioHandler& handler) {
  std::string output;
  for (const std::string& line : block.head) {
    if (!IsCommand(line)) {
      continue;
    }
    ScenarioCommand command(line);
    output += handler(command);
    for (const std::string& key : command.UnusedKeys()) {
      ADD_FAILURE() << "unknown argument " << key << " in: " << line;
    }
  }
  return output;
}

std::string Format(const std::vector<Block>& blocks) {
  std::string text;
  for (const Block& block : blocks) {
    text += text.empty() ? "" : "\n";
    for (const std::string& line : block.head) {
      text += line + "\n";
    }
    if (std::any_of(block.head.begin(), block.head.end(), IsCommand)) {
      text += "----\n" + block.expected;
    }
  }
  return text;
}

}  // namespace

ScenarioCommand::ScenarioCommand(std::string_view line) {
  std::vector<std::string> words = absl::StrSplit(std::string(line), ' ', absl::SkipEmpty());
  name_ = words.front();
  for (size_t i = 1; i < words.size(); ++i) {
    std::pair<std::string, std::string> argument =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    arguments_.insert(argument);
  }
}

std::string ScenarioCommand::Text(const std::string& key, const std::string& fallback) const {
  was_used_[key] = true;
  auto it = arguments_.find(key);
  return it == arguments_.end() ? fallback : it->second;
}

int64_t ScenarioCommand::Int(const std::string& key, int64_t fallback) const {
  std::string text = Text(key, std::to_string(fallback));
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    ADD_FAILURE() << key << ": not a number: " << text;
  }
  return value;
}

double ScenarioCommand::Number(const std::string& key, double fallback) const {
  double value = fallback;
  if (Has(key) && !absl::SimpleAtod(Text(key, ""), &value)) {
    ADD_FAILURE() << key << ": not a number";
  }
  return value;
}

std::vector<int32_t> ScenarioCommand::Ints(const std::string& key) const {
  std::vector<int32_t> values;
  for (const std::string& text :
       std::vector<std::string>(absl::StrSplit(Text(key, ""), ',', absl::SkipEmpty()))) {
    int32_t value = 0;
    if (!absl::SimpleAtoi(text, &value)) {
      ADD_FAILURE() << key << ": not a number: " << text;
    }
    values.push_back(value);
  }
  return values;
}

std::vector<std::string> ScenarioCommand::UnusedKeys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : arguments_) {
    if (was_used_.count(key) == 0) {
      keys.push_back(key);
    }
  }
  return keys;
}

void RunScenario(const std::filesystem::path& file, const ScenarioHandler& handler, bool rewrite) {
  std::ifstream input(file);
  ASSERT_TRUE(input.is_open()) << file;
  std::vector<Block> blocks = Parse(input);
  ASSERT_FALSE(blocks.empty()) << file << ": no block";
  for (Block& block : blocks) {
    std::string output = RunBlock(block, handler);
    if (rewrite) {
      block.expected = output;
    } else {
      EXPECT_EQ(output, block.expected) << file.string() << ":" << block.line;
    }
  }
  if (rewrite) {
    std::ofstream(file) << Format(blocks);
  }
}

std::vector<std::filesystem::path> ScenarioFilesIn(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace quire
