#include "deploy/cli/sim_command.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/deploy/ran_command.h"

namespace quire {
namespace {

class SimCommandTest : public testing::Test {
 protected:
  SimCommandTest() : folder_(std::filesystem::path(testing::TempDir()) / "quire-sim-test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~SimCommandTest() override { std::filesystem::remove_all(folder_); }

  std::string PathOf(const std::string& name) const { return folder_ / name; }
  std::string ReadFile(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(PathOf(name)).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(SimCommandTest, PrintsVerdictsAndWritesCsvAndSvg) {
  const RanCommand ran =
      Capture(RunSim, {"--figures", "table1,fig19", "--output-dir", PathOf("out")});

  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_NE(ran.out.find("a100x8-opt-175b  60.1K  60.1K  match"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("MISS"), std::string::npos);
  EXPECT_NE(ReadFile("out/table1.csv").find("a100-opt-13b,15.7K,15.7K,as said,match\n"),
            std::string::npos);
  EXPECT_NE(ReadFile("out/fig19.svg").find("</svg>"), std::string::npos);
  EXPECT_NE(ReadFile("out/fig19-plot.csv").find("\"swap, block-major\",16,"), std::string::npos);
}

TEST_F(SimCommandTest, AFileIsTheTraceOfOneSimulation) {
  std::ofstream(PathOf("trace.csv")) << "0,10,3\n0.001,5,1\n";

  const RanCommand ran = Capture(RunSim,
                                 {"run",
                                  "--trace-file",
                                  PathOf("trace.csv"),
                                  "--policy=orca-oracle",
                                  "--requests-csv",
                                  PathOf("requests.csv")});

  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_NE(ran.out.find("requests                     2\n"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("steps                        3\n"), std::string::npos) << ran.out;
  const std::string requests = ReadFile("requests.csv");
  EXPECT_EQ(std::count(requests.begin(), requests.end(), '\n'), 3);
  EXPECT_NE(requests.find("0.001000000,5,1,0."), std::string::npos) << requests;
}

TEST_F(SimCommandTest, AStaticBatchEndsWithItsLongestOutput) {
  std::ofstream(PathOf("trace.csv")) << "0,10,3\n0,5,1\n0.001,5,1\n";

  const RanCommand ran =
      Capture(RunSim, {"run", "--trace-file", PathOf("trace.csv"), "--policy=faster-transformer"});

  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_NE(ran.out.find("steps                        4\n"), std::string::npos) << ran.out;
}

TEST_F(SimCommandTest, TheTracesOfTheVattentionPaperAreDatasets) {
  const std::vector<std::string> common = {"run",
                                           "--platform",
                                           "a100x2-llama3-8b",
                                           "--max-model-len",
                                           "262144",
                                           "--max-num-batched-tokens",
                                           "16384",
                                           "--trace-minutes",
                                           "5",
                                           "--request-rate",
                                           "0.25",
                                           "--dataset"};
  const auto with = [&](const std::string& dataset) {
    std::vector<std::string> all = common;
    all.push_back(dataset);
    return Capture(RunSim, all);
  };

  const RanCommand online = with("arxiv-online");
  const RanCommand offline = with("arxiv-offline");

  EXPECT_EQ(online.exit_code, 0) << online.err;
  EXPECT_EQ(offline.exit_code, 0) << offline.err;
  EXPECT_NE(offline.out.find("requests                     427\n"), std::string::npos)
      << offline.out;
}

TEST_F(SimCommandTest, TheSameSeedPrintsTheSameAndAnotherDoesNot) {
  const std::vector<std::string> args = {"run", "--trace-minutes", "2", "--seed"};
  const auto with_seed = [&](const std::string& seed) {
    std::vector<std::string> all = args;
    all.push_back(seed);
    return Capture(RunSim, all).out;
  };

  EXPECT_EQ(with_seed("5"), with_seed("5"));
  EXPECT_NE(with_seed("5"), with_seed("6"));
}

TEST_F(SimCommandTest, BadArgumentsEndWithTwoAndSayWhat) {
  const std::vector<std::vector<std::string>> all = {
      {"--figures", "fig99"},
      {"--figures", ""},
      {"--trace-minutes", "0"},
      {"--trace-minutes", "nan"},
      {"--trace-minutes", "1e9"},
      {"--no-such-flag"},
      {"walk"},
      {"run", "--platform", "tpu"},
      {"run", "--policy", "orca"},
      {"run", "--dataset", "c4"},
      {"run", "--dataset", "arxiv-offline", "--shared-prefix", "1"},
      {"run", "--request-rate", "0"},
      {"run", "--request-rate", "inf"},
      {"run", "--shared-prefix", "-1"}};
  for (const std::vector<std::string>& args : all) {
    const RanCommand ran = Capture(RunSim, args);
    EXPECT_EQ(ran.exit_code, 2) << args.back();
    EXPECT_NE(ran.err.find("quire sim: "), std::string::npos) << args.back();
  }
}

TEST_F(SimCommandTest, WhatCannotRunEndsWithOneAndSaysWhy) {
  std::ofstream(PathOf("long.csv")) << "0,2000,100\n";
  std::ofstream(PathOf("bad.csv")) << "0,1\n";
  const std::vector<std::vector<std::string>> all = {
      {"run", "--trace-file", PathOf("none.csv")},
      {"run", "--trace-file", PathOf("long.csv")},
      {"run", "--trace-file", PathOf("bad.csv")},
      {"run", "--trace-file", PathOf("")},
      {"run", "--block-size", "3"},
      {"run", "--block-size", "-1"},
      {"run", "--max-num-seqs", "0"},
      {"run", "--max-model-len", "100"},
      {"run", "--policy", "orca-pow2", "--max-num-batched-tokens", "10"},
      {"run", "--shared-prefix", "2040"},
      {"--figures", "table1", "--output-dir", "/proc/none"}};
  for (const std::vector<std::string>& args : all) {
    const RanCommand ran = Capture(RunSim, args);
    EXPECT_EQ(ran.exit_code, 1) << args.back();
    EXPECT_NE(ran.err.find("quire sim: "), std::string::npos) << args.back();
  }
}

TEST_F(SimCommandTest, HelpNamesThePolicies) {
  const RanCommand ran = Capture(RunSim, {"run", "--help"});

  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_NE(ran.out.find("orca-oracle"), std::string::npos);
  EXPECT_NE(ran.out.find("faster-transformer"), std::string::npos);
}

}  // namespace
}  // namespace quire
