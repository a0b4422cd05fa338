// quire: the command line of Quire. Sub-commands: serve, supervise, generate, chat, bench serve,
// top, prefix, key, sim, replay.
#include <cstdio>
#include <string>
#include <vector>

#include "common/flags/command_line.h"
#include "deploy/cli/bench_command.h"
#include "deploy/cli/chat_command.h"
#include "deploy/cli/generate_command.h"
#include "deploy/cli/key_command.h"
#include "deploy/cli/prefix_command.h"
#include "deploy/cli/replay_command.h"
#include "deploy/cli/serve_command.h"
#include "deploy/cli/sim_command.h"
#include "deploy/cli/supervise_command.h"
#include "deploy/cli/top_command.h"

namespace {

constexpr char kQuireUsage[] =
    R"(usage: quire COMMAND [flags]

    serve         start a scheduler and its workers on this machine
    supervise     run a scheduler or a worker alone, and restart it when it dies or hangs
    generate      send one request and stream its tokens
    chat          talk with a model, through HTTP
    bench serve   send load to a running server and print a result table
    top           show the KV blocks, queues and rates of a running server, live
    prefix        pin prompt prefixes in the KV cache of a running server
    key           make an API key and its line for the server's --api-keys-file
    sim           simulate serving, and reproduce the PagedAttention paper's figures
    replay        replay a server's step log and compare every plan
    version       print the version

quire COMMAND --help explains the flags of a command.
)";

}  // namespace

// Reading a JSON value throws only if the value has the wrong type. The commands check all types
// before they read, which clang-tidy cannot see.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  const std::string command = args.empty() ? "" : args[0];
  const std::vector<std::string> rest(args.empty() ? args.end() : args.begin() + 1, args.end());
  if (command == "serve") {
    return quire::RunServe(rest);
  }
  if (command == "supervise") {
    return quire::RunSupervise(rest);
  }
  if (command == "generate") {
    return quire::RunGenerate(rest);
  }
  if (command == "chat") {
    return quire::RunChat(rest);
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
