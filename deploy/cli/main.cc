// quire: the command line of Quire. Sub-commands: serve, generate, bench serve, top, prefix, key,
// sim, replay.
#include <cstdio>
#include <string>
#include <vector>

#include "common/flags/command_line.h"
#include "deploy/cli/bench_command.h"
#include "deploy/cli/generate_command.h"
#include "deploy/cli/key_command.h"
#include "deploy/cli/prefix_command.h"
#include "deploy/cli/replay_command.h"
#include "deploy/cli/serve_command.h"
#include "deploy/cli/sim_command.h"
#include "deploy/cli/top_command.h"

namespace {

constexpr char kQuireUsage[] =
    R"(usage: quire COMMAND [flags]

    serve         start a scheduler and a worker on this machine
    generate      send one request and stream its tokens
    bench serve   load a running server and print the result table
    top           look inside a running server: its KV blocks, queues and rates, live
    prefix        keep beginnings of prompts in the KV cache of a running server
    key           make an API key, and its line for the server's file
    sim           simulate serving, and make the PagedAttention paper's figures anew
    replay        make the plans of a recorded server again and compare them
    version       print the version

quire COMMAND --help tells more.
)";

}  // namespace

// Reading a JSON value throws only if it has the wrong type. All types are checked before, which
// clang-tidy cannot see.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  const std::string command = args.empty() ? "" : args[0];
  const std::vector<std::string> rest(args.empty() ? args.end() : args.begin() + 1, args.end());
  if (command == "serve") {
    return quire::RunServe(rest);
  }
  if (command == "generate") {
    return quire::RunGenerate(rest);
  }
  if (command == "bench" && !rest.empty() && rest[0] == "serve") {
    return quire::RunBenchServe({rest.begin() + 1, rest.end()});
  }
  if (command == "top") {
    return quire::RunTop(rest);
  }
  if (command == "prefix") {
    return quire::RunPrefix(rest);
  }
  if (command == "key") {
    return quire::RunKey(rest);
  }
  if (command == "sim") {
    return quire::RunSim(rest);
  }
  if (command == "replay") {
    return quire::RunReplay(rest);
  }
  if (command == "version" || command == "--version") {
    std::printf("quire %s\n", std::string(quire::Version()).c_str());
    return 0;
  }
  const bool asked = command == "--help" || command == "help";
  std::fputs(kQuireUsage, asked ? stdout : stderr);
  return asked ? 0 : quire::kExitUsage;
}
