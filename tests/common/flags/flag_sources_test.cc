#include "common/flags/flag_sources.h"

#include <stdlib.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

using Arguments = std::vector<std::string>;

class FlagSourcesTest : public testing::Test {
 protected:
  FlagSourcesTest() {
    ::setenv("FLAGS_block_size", "32", /*overwrite=*/1);
    ::setenv("FLAGS_empty", "", /*overwrite=*/1);
    ::unsetenv("FLAGS_absent");
  }

  std::string File(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return absl::StrCat("--flagfile=", path_);
  }

  // "" where there is none.
  std::string ErrorOf(const Arguments& args) {
    const absl::Status status = ExpandFlagSources(args).status();
    EXPECT_TRUE(status.ok() || ReasonOf(status) == "FLAG");
    return std::string(status.message());
  }

  const std::string path_ = absl::StrCat(testing::TempDir(), "/flag_sources_test.flags");
};

TEST_F(FlagSourcesTest, WhatIsNoSourceStaysAsItIs) {
  const Arguments args = {"model", "--block-size", "8", "-", "-tp=2", "--flagfiles=x", "--verbose"};

  EXPECT_EQ(*ExpandFlagSources(args), args);
}

TEST_F(FlagSourcesTest, LinesOfAFileTakeThePlaceOfTheFlag) {
  const std::string file = File(
      "# of this machine\n\n  --block-size=16 \r\n--model /a folder/b=c\n-tp\t2\n--no-verbose");

  EXPECT_EQ(*ExpandFlagSources({"--first", file, "--last"}),
            (Arguments{"--first",
                       "--block-size=16",
                       "--model=/a folder/b=c",
                       "-tp=2",
                       "--no-verbose",
                       "--last"}));
  EXPECT_EQ(*ExpandFlagSources({"--flagfile", path_, "x"}),
            (Arguments{"--block-size=16", "--model=/a folder/b=c", "-tp=2", "--no-verbose", "x"}));
}

TEST_F(FlagSourcesTest, VariablesOfTheEnvironmentAreFlags) {
  EXPECT_EQ(*ExpandFlagSources({"--fromenv=block-size,empty", "--tryfromenv", "absent,block_size"}),
            (Arguments{"--block-size=32", "--empty=", "--block_size=32"}));
  EXPECT_EQ(ErrorOf({"--fromenv=absent"}), "--fromenv: FLAGS_absent is not in the environment");
}

TEST_F(FlagSourcesTest, TwoDashesEndTheFlags) {
  const Arguments args = {"--", "--fromenv=absent"};

  EXPECT_EQ(*ExpandFlagSources(args), args);
}

TEST_F(FlagSourcesTest, MistakesNameTheLineAndNotItsText) {
  for (const char* line : {"secret", "--", "-"}) {
    EXPECT_EQ(ErrorOf({File(absl::StrCat("# one\n", line, "\n"))}),
              absl::StrCat("--flagfile: ", path_, ":2: not a flag"));
  }
  for (const char* line : {"--flagfile=x", "-fromenv y", "--tryfromenv"}) {
    EXPECT_EQ(
        ErrorOf({File(line)}),
        absl::StrCat("--flagfile: ",
                     path_,
                     ":1: a flag file must not contain --flagfile, --fromenv or --tryfromenv"));
  }
  EXPECT_EQ(ErrorOf({File(std::string("--a=b\0c", 7))}),
            absl::StrCat("--flagfile: ", path_, ":1: not a flag"));
  EXPECT_EQ(ErrorOf({"--flagfile"}), "--flagfile: needs a value");
}

TEST_F(FlagSourcesTest, WhatIsNoFileIsRefused) {
  EXPECT_NE(ErrorOf({"--flagfile=/nowhere/at/all"}), "");
  EXPECT_NE(ErrorOf({absl::StrCat("--flagfile=", testing::TempDir())}), "");
  EXPECT_NE(ErrorOf({"--flagfile="}), "");
  EXPECT_EQ(ErrorOf({File(std::string(1 << 20, '\n'))}), "");
  EXPECT_NE(ErrorOf({File(std::string((1 << 20) + 1, '\n'))}), "");
}

}  // namespace
}  // namespace quire
