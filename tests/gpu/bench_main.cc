// gpu_bench compares what the kernels reach on a GPU with what the GPU can do. README.md explains
// the figures; bench.h says how they are measured.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/bench_attention.h"

namespace quire::gpu {
namespace {

constexpr char kUsage[] =
    R"(usage: gpu_bench [flags]

    --only=GROUP,GROUP     ceilings, loads, memory, sampling, gemm, bits, decode,
                           prefill, windows, copies
    --decode-kernels=A,B   splits, lines; default all, measured in turn
    --prefill-kernels=A,B  mma, wgmma, persistent; likewise
    --case=NAME            only this case of decode, prefill or gemm
    --profile              run the cases' kernels once for ncu --profile-from-start off, and
                           measure nothing
    --device               only say which it is
    --quick                a few cases of each group
    --rehearse             tiny sizes: tries the program, measures nothing
    --limit-seconds=N      begin no new case after this time
    --json=FILE            append a line of JSON for each figure
    --peers=FILE           libquire_peers.so of make_peers.sh: measured in turn with ours
    --cublaslt=FILE        libcublasLt, where it is in no usual place
    --copy-gb-per-s=X      ceilings, where they were measured before
    --product-tflop-per-s=X
)";

struct Group {
  const char* name;
  void (*measure)(Bench& bench);
};

void MeasureAndPrintCeilings(Bench& bench) { MeasureCeilings(bench, /*print=*/true); }

constexpr Group kGroups[] = {{"ceilings", MeasureAndPrintCeilings},
                             {"loads", MeasureLoads},
                             {"memory", MeasureMemoryKernels},
                             {"sampling", MeasureSampling},
                             {"gemm", MeasureGemm},
                             {"bits", CheckBits},
                             {"prefill", MeasurePrefill},
                             {"decode", MeasureDecode},
                             {"windows", MeasureWindows},
                             {"copies", MeasureCopies}};

bool IsGroup(const std::string& name) {
  return std::any_of(std::begin(kGroups), std::end(kGroups), [&](const Group& group) {
    return name == group.name;
  });
}

// Returns the value if the argument is --name=value, else null.
const char* ValueOf(const char* argument, const char* name) {
  const size_t length = strlen(name);
  const bool matches = strncmp(argument, name, length) == 0 && argument[length] == '=';
  return matches ? argument + length + 1 : nullptr;
}

template <typename Choice, size_t kCount>
bool IsKernel(const Choice (&table)[kCount], const std::string& name) {
  return std::any_of(
      table, table + kCount, [&](const Choice& choice) { return name == choice.name; });
}
bool IsDecodeKernel(const std::string& name) { return IsKernel(kDecodeChoices, name); }
bool IsPrefillKernel(const std::string& name) { return IsKernel(kPrefillChoices, name); }

// A flag whose value is a list of names.
struct NamesFlag {
  const char* flag;
  bool (*is_name)(const std::string& name);
  std::vector<std::string> BenchOptions::*names;
};
constexpr NamesFlag kNamesFlags[] = {
    {"--only", IsGroup, &BenchOptions::groups},
    {"--decode-kernels", IsDecodeKernel, &BenchOptions::decode_kernels},
    {"--prefill-kernels", IsPrefillKernel, &BenchOptions::prefill_kernels}};

bool ParseNames(const std::string& text, const NamesFlag& flag, std::vector<std::string>* names) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    names->push_back(text.substr(begin, end - begin));
    if (!flag.is_name(names->back())) {
      fprintf(stderr, "gpu_bench: %s: no such name: '%s'\n", flag.flag, names->back().c_str());
      return false;
    }
    begin = end + 1;
  }
  return true;
}

// Returns whether the argument is one of kNamesFlags. Sets *ok to whether all its names are valid.
bool ParseNamesFlag(const char* argument, BenchOptions* options, bool* ok) {
  for (const NamesFlag& flag : kNamesFlags) {
    if (const char* names = ValueOf(argument, flag.flag); names != nullptr) {
      *ok = ParseNames(names, flag, &(options->*flag.names));
      return true;
    }
  }
  return false;
}

bool Parse(int argc, char** argv, BenchOptions* options) {
  constexpr double kGigaPerSecond = 1e3;  // bytes a microsecond
  constexpr double kTeraPerSecond = 1e6;  // FLOP a microsecond
  for (int i = 1; i < argc; ++i) {
    const char* argument = argv[i];
    if (bool ok = true; ParseNamesFlag(argument, options, &ok)) {
      if (!ok) {
        return false;
      }
    } else if (strcmp(argument, "--device") == 0) {
      options->only_device = true;
    } else if (strcmp(argument, "--quick") == 0) {
      options->quick = true;
    } else if (strcmp(argument, "--rehearse") == 0) {
      options->rehearse = true;
    } else if (strcmp(argument, "--profile") == 0) {
      options->profile = true;
    } else if (const char* name = ValueOf(argument, "--case"); name != nullptr) {
      options->only_case = name;
    } else if (const char* seconds = ValueOf(argument, "--limit-seconds"); seconds != nullptr) {
      options->limit_seconds = strtod(seconds, nullptr);
    } else if (const char* json = ValueOf(argument, "--json"); json != nullptr) {
      options->json_path = json;
    } else if (const char* peers = ValueOf(argument, "--peers"); peers != nullptr) {
      options->peers_path = peers;
    } else if (const char* library = ValueOf(argument, "--cublaslt"); library != nullptr) {
      options->library_path = library;
    } else if (const char* copy = ValueOf(argument, "--copy-gb-per-s"); copy != nullptr) {
      options->ceilings.bytes_per_us = strtod(copy, nullptr) * kGigaPerSecond;
    } else if (const char* product = ValueOf(argument, "--product-tflop-per-s");
               product != nullptr) {
      options->ceilings.flops_per_us = strtod(product, nullptr) * kTeraPerSecond;
    } else {
      fprintf(stderr, "gpu_bench: unknown argument %s\n", argument);
      return false;
    }
  }
  return true;
}

void PrintDevice(const DeviceInfo& device) {
  constexpr double kGiga = 1e9;
  constexpr double kMega = 1e6;
  DeviceFacts facts;
  Require(QueryFacts(&facts), "query device");
  printf(
      "device: %s, sm_%d, %d multiprocessors, %.0f GB (%.0f free), L2 %.0f MB, "
      "CUDA driver %d, runtime %d\n",
      device.name,
      device.compute_capability,
      device.num_multiprocessors,
      static_cast<double>(device.total_bytes) / kGiga,
      static_cast<double>(device.free_bytes) / kGiga,
      static_cast<double>(facts.l2_bytes) / kMega,
      facts.driver_version,
      facts.runtime_version);
}

int Run(const BenchOptions& options) {
  DeviceInfo device;
  if (const int error = QueryDevice(0, &device); error != 0) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread
    if (getenv("QUIRE_REQUIRE_GPU") != nullptr) {
      printf("a GPU is required: %s\n", ErrorText(error));
      return EXIT_FAILURE;
    }
    printf("no GPU: %s; nothing was measured\n", ErrorText(error));
    return EXIT_SUCCESS;
  }
  PrintDevice(device);
  if (options.only_device) {
    return EXIT_SUCCESS;
  }
  Bench bench(options);
  if (options.rehearse) {
    bench.report().Say("a rehearsal: no time below means anything");
  }
  auto is_wanted = [&](const char* name) {
    const auto& groups = options.groups;
    return groups.empty() || std::find(groups.begin(), groups.end(), name) != groups.end();
  };
  if (!is_wanted("ceilings") && !options.profile) {
    MeasureCeilings(bench, /*print=*/false);
  }
  for (const Group& group : kGroups) {
    if (is_wanted(group.name) && !bench.IsOutOfTime()) {
      group.measure(bench);
    }
  }
  printf("%d figures, %d wrong\n", bench.report().num_figures(), bench.report().num_failed());
  return bench.report().num_failed() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace quire::gpu

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--help") == 0) {
      fputs(quire::gpu::kUsage, stdout);
      return EXIT_SUCCESS;
    }
  }
  quire::gpu::BenchOptions options;
  if (!quire::gpu::Parse(argc, argv, &options)) {
    fputs(quire::gpu::kUsage, stderr);
    return 2;
  }
  return quire::gpu::Run(options);
}
