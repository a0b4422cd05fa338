// Measures an AllReduce of two ranks that are two processes of one host. The transports: a Unix
// socket; shared memory, with waiting ranks asleep or spinning; TCP on loopback, encrypted and in
// the clear; and gloo over TCP, where it is installed.
//
// The transports take turns. For each it prints rank 0's p50 and p90 over all rounds and its
// processor time a call. It also prints the ratio of the p50 to gloo's better one and to TCP in the
// clear. Other work on the machine changes the processor time less than the elapsed time. With
// `pin` the processes stay on cores 0 and 1.
//
//   collective_bench [rounds [pin]]
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "tests/support/rank_group.h"

#include <sys/types.h>
#include <sys/wait.h>

#ifdef QUIRE_HAVE_GLOO
#include "gloo/allreduce.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"
#endif

namespace quire {
namespace {

constexpr int32_t kCallsPerRound = 200;
constexpr int32_t kWarmUpCalls = 20;

struct Way {
  std::string name;
  std::function<void(std::span<float>)> all_reduce;
  std::vector<int64_t> nanos = {};
  int64_t cpu_nanos = 0;  // of all of them
};

// Sockets and memory of one transport of Quire, made before the fork so that both processes have
// them.
struct OwnParts {
  Transport transport;
  LinkParts parts;
};

Way OwnWay(OwnParts& own, size_t rank) {
  own.parts.sockets[1 - rank].Close();
  std::vector<PeerLink> links;
  links.push_back(own.parts.Take(rank, own.transport));
  auto group = std::make_shared<Communicator>(static_cast<int32_t>(rank), std::move(links));
  return {.name = NameOf(own.transport), .all_reduce = [group](std::span<float> data) {
            group->AllReduce(data);
            QUIRE_CHECK(group->status().ok());
          }};
}

#ifdef QUIRE_HAVE_GLOO
void AddGlooWays(const std::string& folder, int rank, std::vector<Way>* ways) {
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
  context->connectFullMesh(store, device);
  for (const auto& [name, algorithm] :
       {std::pair("gloo ring", Algorithm::RING), std::pair("gloo bcube", Algorithm::BCUBE)}) {
    const auto all_reduce = [context, chosen = algorithm](std::span<float> data) {
      gloo::AllreduceOptions options(context);
      options.setAlgorithm(chosen);
      options.setOutput(data.data(), data.size());
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    };
    ways->push_back({.name = name, .all_reduce = all_reduce});
  }
}
#endif

int64_t CpuNanos() {
  timespec time = {};
  QUIRE_CHECK(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
  return time.tv_sec * kNanosPerSecond + time.tv_nsec;
}

void Measure(Way& way, std::span<float> data) {
  for (int32_t i = 0; i < kWarmUpCalls + kCallsPerRound; ++i) {
    std::ranges::fill(data, 1.0F);
    const int64_t cpu_begin = CpuNanos();
    const Instant begin = SteadyNow();
    way.all_reduce(data);
    const Instant end = SteadyNow();
    const int64_t cpu_end = CpuNanos();
    QUIRE_CHECK(data.front() == 2.0F && data.back() == 2.0F);
    if (i >= kWarmUpCalls) {
      way.nanos.push_back(end - begin);
      way.cpu_nanos += cpu_end - cpu_begin;
    }
  }
}

double MicrosAt(std::vector<int64_t>& nanos, double part) {
  const auto place = static_cast<std::ptrdiff_t>(part * static_cast<double>(nanos.size() - 1));
  std::ranges::nth_element(nanos, nanos.begin() + place);
  return static_cast<double>(nanos[static_cast<size_t>(place)]) / double{kNanosPerMicro};
}

void Print(size_t bytes, std::vector<Way>& ways) {
  double of_gloo = 0.0;  // the better one's
  double of_clear = 0.0;
  for (Way& way : ways) {
    const double p50 = MicrosAt(way.nanos, 0.5);
    if (way.name.starts_with("gloo")) {
      of_gloo = of_gloo == 0.0 ? p50 : std::min(of_gloo, p50);
    } else if (way.name == NameOf(Transport::kTcpInTheClear)) {
      of_clear = p50;
    }
  }
  for (Way& way : ways) {
    const double p50 = MicrosAt(way.nanos, 0.5);
    std::printf(
        "%8zu  %-16s %10.1f %10.1f", bytes, way.name.c_str(), p50, MicrosAt(way.nanos, 0.9));
    std::printf(of_gloo > 0.0 ? " %8.2f" : "        -", p50 / of_gloo);
    const auto num_calls = static_cast<double>(way.nanos.size());
    std::printf(" %8.2f %8.1f\n",
                p50 / of_clear,
                static_cast<double>(way.cpu_nanos) / num_calls / double{kNanosPerMicro});
  }
}

void RunRank(size_t rank,
             int rounds,
             std::vector<OwnParts>& own,
             [[maybe_unused]] const std::string& folder) {
  std::vector<Way> ways;
  for (OwnParts& parts : own) {
    ways.push_back(OwnWay(parts, rank));
  }
#ifdef QUIRE_HAVE_GLOO
  AddGlooWays(folder, static_cast<int>(rank), &ways);
#endif
  for (const size_t bytes : {size_t{4} << 10, size_t{64} << 10, size_t{1} << 20}) {
    std::vector<float> data(bytes / sizeof(float));
    for (int round = 0; round < rounds; ++round) {
      for (Way& way : ways) {
        Measure(way, data);
      }
    }
    if (rank == 0) {
      Print(bytes, ways);
    }
    for (Way& way : ways) {
      way.nanos.clear();
      way.cpu_nanos = 0;
    }
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 10;
  std::string folder =
      (std::filesystem::temp_directory_path() / "collective_bench_XXXXXX").string();
  QUIRE_CHECK(rounds > 0 && ::mkdtemp(folder.data()) != nullptr);
  std::vector<quire::OwnParts> own;
  for (const quire::Transport transport : {quire::Transport::kSocket,
                                           quire::Transport::kShared,
                                           quire::Transport::kSharedSpinning,
                                           quire::Transport::kTcpInTheClear,
                                           quire::Transport::kTls}) {
    own.push_back({.transport = transport, .parts = quire::MakeLinkParts(transport)});
  }
  std::printf("   bytes  way                p50 us     p90 us  of gloo of clear   cpu us\n");
  std::fflush(stdout);
  const pid_t child = ::fork();
  QUIRE_CHECK(child >= 0);
  if (argc > 2) {
    cpu_set_t cpu;
    CPU_ZERO(&cpu);
    CPU_SET(child == 0 ? 1 : 0, &cpu);
    QUIRE_CHECK(::sched_setaffinity(0, sizeof(cpu), &cpu) == 0);
  }
  quire::RunRank(child == 0 ? 1 : 0, rounds, own, folder);
  if (child != 0) {
    ::waitpid(child, nullptr, 0);
    std::filesystem::remove_all(folder);
  }
  return 0;
}
