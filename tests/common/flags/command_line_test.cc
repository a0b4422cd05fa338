#include "common/flags/command_line.h"

#include <stdlib.h>

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include <gtest/gtest.h>

#include "common/base/error.h"

ABSL_FLAG(int32_t, block_size, 16, "Tokens in a block.");
ABSL_FLAG(std::string, model, "", "Model directory.");
ABSL_FLAG(bool, prefix_caching, true, "Reuse blocks.");
ABSL_FLAG(bool, verbose, false, "Say more.");

namespace quire {
namespace {

class CommandLineTest : public testing::Test {
 protected:
  absl::StatusOr<CommandLine> Parse(const std::vector<const char*>& arguments) {
    return ParseArguments(arguments);
  }

  absl::FlagSaver saver_;  // every test starts with the defaults
};

TEST_F(CommandLineTest, DashesAndUnderscoresNameTheSameFlag) {
  for (const char* name : {"--block-size", "--block_size", "-block-size"}) {
    absl::SetFlag(&FLAGS_block_size, 0);

    ASSERT_TRUE(Parse({name, "32"}).ok());

    EXPECT_EQ(absl::GetFlag(FLAGS_block_size), 32) << name;
  }
}

TEST_F(CommandLineTest, ValuesKeepTheirDashes) {
  ASSERT_TRUE(Parse({"--model=my-model_dir/a=b", "--block-size=8"}).ok());

  EXPECT_EQ(absl::GetFlag(FLAGS_model), "my-model_dir/a=b");
  EXPECT_EQ(absl::GetFlag(FLAGS_block_size), 8);
}

TEST_F(CommandLineTest, BooleansAreSwitchedWithoutAValue) {
  ASSERT_TRUE(Parse({"--verbose", "--no-prefix-caching"}).ok());
  EXPECT_TRUE(absl::GetFlag(FLAGS_verbose));
  EXPECT_FALSE(absl::GetFlag(FLAGS_prefix_caching));

  ASSERT_TRUE(Parse({"--noverbose", "--prefix_caching=true"}).ok());
  EXPECT_FALSE(absl::GetFlag(FLAGS_verbose));
  EXPECT_TRUE(absl::GetFlag(FLAGS_prefix_caching));
}

TEST_F(CommandLineTest, WhatIsNoFlagIsPositionalInOrder) {
  auto line = Parse({"generate", "--verbose", "hello", "-", "--", "--model", "x"});

  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->positional, (std::vector<std::string>{"generate", "hello", "-", "--model", "x"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_model), "");
}

TEST_F(CommandLineTest, NegativeNumbersAreValues) {
  ASSERT_TRUE(Parse({"--block-size", "-5"}).ok());

  EXPECT_EQ(absl::GetFlag(FLAGS_block_size), -5);
}

TEST_F(CommandLineTest, AFlagIsNoValueOfTheFlagBeforeIt) {
  for (const char* next : {"--verbose", "-verbose"}) {
    EXPECT_EQ(ReasonOf(Parse({"--model", next}).status()), "FLAG") << next;
  }
}

TEST_F(CommandLineTest, FlagsMayStandInTheEnvironment) {
  ::setenv("FLAGS_block_size", "64", /*overwrite=*/1);

  ASSERT_TRUE(Parse({"--block-size=8", "--fromenv=block-size"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_block_size), 64);

  ASSERT_TRUE(Parse({"--fromenv=block-size", "--block-size=8"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_block_size), 8) << "what comes later wins";
}

struct Mistake {
  std::vector<const char*> arguments;
  std::string message;
};

TEST_F(CommandLineTest, MistakesAreOneClearLine) {
  const std::vector<Mistake> mistakes = {
      {{"--blok-size", "8"}, "--blok-size: unknown flag (did you mean --block-size?)"},
      {{"--zzzzzzzzzzzz"}, "--zzzzzzzzzzzz: unknown flag"},
      {{"--block-size"}, "--block-size: needs a value"},
      {{"--model", "--verbose"}, "--model: needs a value"},
      {{"--block-size=big"}, "--block-size: must be a 32-bit integer (got 'big')"},
      {{"--verbose=perhaps"}, "--verbose: must be true or false (got 'perhaps')"},
      {{"--no-verbose=true"}, "--no-verbose: takes no value"},
      {{"--no-model"}, "--no-model: unknown flag"},
  };
  for (const Mistake& mistake : mistakes) {
    absl::Status status = Parse(mistake.arguments).status();

    EXPECT_EQ(ReasonOf(status), "FLAG");
    EXPECT_EQ(std::string(status.message()).substr(0, mistake.message.size()), mistake.message);
  }
}

TEST_F(CommandLineTest, HelpListsOurFlagsAndNoOthers) {
  std::string text =
      HelpText({.name = "quire_test", .usage = "[flags]", .summary = "For this test."});

  EXPECT_EQ(text,
            "usage: quire_test [flags]\n"
            "For this test.\n"
            "\n"
            "flags:\n"
            "  --block-size (default 16)\n"
            "      Tokens in a block.\n"
            "  --model\n"
            "      Model directory.\n"
            "  --[no-]prefix-caching (default on)\n"
            "      Reuse blocks.\n"
            "  --verbose\n"
            "      Say more.\n"
            "  --flagfile\n"
            "      File with one flag per line (--name=value). The flags of the file "
            "replace this one. A line that begins with # is a comment.\n"
            "  --fromenv\n"
            "      Names of flags, separated by commas. Flag --x gets the value of the "
            "environment variable FLAGS_x.\n"
            "  --tryfromenv\n"
            "      Like --fromenv, except that a flag without a variable keeps its value.\n"
            "  --help\n"
            "      Print this and exit.\n"
            "  --version\n"
            "      Print the version and exit.\n");
}

using CommandLineDeathTest = CommandLineTest;

TEST_F(CommandLineDeathTest, MainEndsWithTwoForAMistakeAndWithZeroForHelp) {
  const ProgramInfo program = {.name = "quire_test", .usage = "", .summary = "Tests."};
  std::string name = "quire_test";
  std::string wrong = "--wrong";
  std::string help = "--help";
  std::string version = "--version";
  std::vector<char*> argv = {name.data(), wrong.data()};

  EXPECT_EXIT(ParseCommandLineOrExit(2, argv.data(), program),
              testing::ExitedWithCode(2),
              "^quire_test: --wrong: unknown flag.*\n$");
  argv[1] = help.data();
  EXPECT_EXIT(ParseCommandLineOrExit(2, argv.data(), program), testing::ExitedWithCode(0), "");
  argv[1] = version.data();
  EXPECT_EXIT(ParseCommandLineOrExit(2, argv.data(), program), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace quire
