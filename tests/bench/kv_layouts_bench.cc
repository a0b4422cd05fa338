// kv_layouts_bench compares layouts of a KV cache, for decode attention of 'small'.
//
//   kv_layouts_bench [--contexts 128,512] [--block_sizes 16,64] [--rounds 15] [--threads 2]
//   [--fp32]
//
// It prints one Markdown table: a column for each context, in a cell a figure for each block size.
//   kernel        attention of a decode step through all layers. In a round each layout takes its
//                 turn, in another order each time. The table has the median of the ratios within
//                 rounds, and for the first layout the median in milliseconds.
//   mapping       mappings of an average decode step, 1 / block size of a block a sequence, in
//                 places that showed other blocks
//   tables        building the kernel's other inputs: block tables, places, pointers
//   wasted        with blocks: half of a sequence's last block on average, and the rounding of
//                 blocks to pages; with an array for each sequence: its length beyond the context
//   prefix hit    a sequence gets half its context, in blocks that others have: calls that map
//                 them, or entries of its table; blocks all over the pool, and neighbours
//   fork          a beam gets all blocks of another and a copy of the last one, half written
//   mappings      mappings that Linux counts for the batch. A layout is refused before any is made
//                 if Linux allows fewer than these and those of one more sequence, to which the
//                 bench maps.
// Then it prints Figure 18a of the PagedAttention paper: the latency of both kernels at short
// contexts.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/splitmix64.h"
#include "common/flags/command_line.h"
#include "kernels/api/host_windows.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/bench/kv_caches.h"

ABSL_FLAG(std::string, contexts, "128,512,2048,8192,32768", "tokens a sequence, comma-separated");
ABSL_FLAG(std::string,
          block_sizes,
          "16,64,256",
          "tokens a block, comma-separated; multiples of 16");
ABSL_FLAG(int, rounds, 15, "rounds in which each layout is timed");
ABSL_FLAG(int, threads, 2, "threads of the kernels");
ABSL_FLAG(bool, fp32, false, "a cache in fp32, not in bf16");
ABSL_FLAG(bool, figure_18a, true, "also the PagedAttention paper's Figure 18a");

namespace quire {
namespace {

constexpr int32_t kTokens = 16384;      // of all sequences of a batch, or one sequence of more
constexpr int32_t kMaxContext = 32768;  // what an array for each sequence has room for

constexpr const char* kNames[kNumKvLayouts] = {
    "paged, huge pages",
    "paged, memfd",
    "block-major windows, paged kernel",
    "layer-major windows, contiguous kernel",
    "arrays, contiguous kernel [token][head]",
    "arrays, contiguous kernel [head][token]",
};
constexpr KvLayout kLayouts[kNumKvLayouts] = {KvLayout::kPagedHuge,
                                              KvLayout::kPagedFile,
                                              KvLayout::kBlockWindows,
                                              KvLayout::kLayerWindows,
                                              KvLayout::kPlain,
                                              KvLayout::kPlainHeads};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <typename Fn>
double MicrosOf(const Fn& fn) {
  const Instant begin = SteadyNow();
  fn();
  return static_cast<double>(SteadyNow() - begin) / double{kNanosPerMicro};
}

template <typename Fn>
double MedianMicros(int repeats, const Fn& fn) {
  std::vector<double> micros(static_cast<size_t>(repeats));
  for (double& value : micros) {
    value = MicrosOf(fn);
  }
  return Median(std::move(micros));
}

bool HasBlocks(KvLayout layout) {
  return layout != KvLayout::kPlain && layout != KvLayout::kPlainHeads;
}
bool HasWindows(KvLayout layout) {
  return layout == KvLayout::kBlockWindows || layout == KvLayout::kLayerWindows;
}

struct Kernels {
  std::vector<double> micros;  // [layouts] of a step, median; 0: refused
  std::vector<double> ratios;  // [layouts] to the first layout of the same round, median
};

// Steps that make a turn, of short ones several. All layouts have computed one then, with the same
// outcome.
int StepsOfTurn(KvCaches& caches) {
  constexpr double kTurnMicros = 10'000;
  std::vector<float> first_out;
  double micros = kTurnMicros;
  for (const KvLayout layout : kLayouts) {
    if (!caches.has(layout)) {
      continue;
    }
    caches.BuildTables(layout);
    caches.Step(layout);
    if (layout == KvLayout::kPagedHuge) {
      first_out = caches.out();
      micros = MicrosOf([&] { caches.Step(layout); });
    }
    QUIRE_CHECK(layout == KvLayout::kPlainHeads || caches.out() == first_out);
  }
  return std::max(1, static_cast<int>(kTurnMicros / micros));
}

// Micros of a step.
double TimeTurn(KvCaches& caches, KvLayout layout, int steps) {
  caches.BuildTables(layout);
  const double micros = MicrosOf([&] {
    for (int i = 0; i < steps; ++i) {
      caches.Step(layout);
    }
  });
  return micros / steps;
}

Kernels TimeKernels(KvCaches& caches) {
  const auto num_rounds = static_cast<size_t>(std::max(1, absl::GetFlag(FLAGS_rounds)));
  std::vector<std::vector<double>> micros(kNumKvLayouts, std::vector<double>(num_rounds));
  const int steps = StepsOfTurn(caches);
  for (size_t round = 0; round < num_rounds; ++round) {
    for (size_t turn = 0; turn < kNumKvLayouts; ++turn) {
      const size_t index = (round + turn) % kNumKvLayouts;
      if (caches.has(kLayouts[index])) {
        micros[index][round] = TimeTurn(caches, kLayouts[index], steps);
      }
    }
  }
  Kernels result;
  for (const std::vector<double>& of_layout : micros) {
    std::vector<double> ratios;
    for (size_t round = 0; round < num_rounds; ++round) {
      ratios.push_back(of_layout[round] / micros[0][round]);
    }
    result.micros.push_back(Median(of_layout));
    result.ratios.push_back(Median(std::move(ratios)));
  }
  return result;
}

// A block that comes to a sequence, in a place that showed another one.
double GrowthMicros(KvCaches& caches, KvLayout layout) {
  constexpr int kGrowths = 64;
  const KvCachesShape& shape = caches.shape();
  uint64_t state = 3;
  return MedianMicros(kGrowths, [&] {
    const auto place =
        static_cast<int32_t>(SplitMix64(state) % static_cast<uint64_t>(shape.blocks_per_seq()));
    const auto seq = static_cast<int32_t>(SplitMix64(state) % static_cast<uint64_t>(shape.batch));
    caches.MapGuest(layout, place, caches.BlockOf(seq, shape.blocks_per_seq() - 1 - place));
  });
}

// The guest gets so many blocks that are neighbours.
double RunMicros(KvCaches& caches, KvLayout layout, int32_t num_blocks) {
  constexpr int kRepeats = 7;
  return MedianMicros(kRepeats, [&] {
    if (num_blocks > 0) {
      caches.MapGuest(layout, 0, kNullBlockId + 1, num_blocks);
    }
  });
}

// The guest gets so many blocks of a sequence, and then a copy of the next one.
double SharingMicros(KvCaches& caches, KvLayout layout, int32_t num_blocks, bool copies) {
  constexpr int kRepeats = 7;
  int32_t seq = 0;
  return MedianMicros(kRepeats, [&] {
    for (int32_t i = 0; i < num_blocks; ++i) {
      caches.MapGuest(layout, i, caches.BlockOf(seq, i));
    }
    if (copies) {
      caches.CopyToSpare(layout, caches.BlockOf(seq, num_blocks));
      caches.MapGuest(layout, num_blocks, caches.spare_block());
    }
    seq = (seq + 1) % caches.shape().batch;
  });
}

double WastedBytes(const KvCaches& caches, KvLayout layout) {
  const KvCachesShape& shape = caches.shape();
  const auto token_bytes = static_cast<double>(shape.layer_windows().token_bytes *
                                               shape.layer_windows().pages_per_block());
  if (!HasBlocks(layout)) {
    return token_bytes * shape.batch * (kMaxContext - std::min(kMaxContext, shape.context));
  }
  const double block_bytes = token_bytes * shape.block_size_tokens;
  const double padding = static_cast<double>(caches.block_bytes()) - block_bytes;
  return shape.batch * (block_bytes / 2 + padding * shape.blocks_per_seq());
}

// Figures of the table, and its cells: one for each layout and context.
class Table {
 public:
  enum Figure {
    kKernel,
    kMapping,
    kTables,
    kWasted,
    kPrefixHit,
    kPrefixRun,
    kFork,
    kMappings,
    kNumFigures
  };

  void Add(Figure figure, KvLayout layout, const std::string& value) {
    cells_[figure][static_cast<size_t>(layout)].push_back(value);
  }

  // Values were added in the order of contexts, then of block sizes.
  void Print(const std::vector<KvCachesShape>& columns, size_t num_block_sizes) const {
    static constexpr const char* kTitles[kNumFigures] = {
        "kernel, ms a step; the others: ratio",
        "mapping, us a step",
        "tables, us a step",
        "wasted, MiB",
        "prefix hit, us",
        "prefix hit, neighbours, us",
        "fork and copy, us",
        "mappings",
    };
    std::printf("| |");
    for (const KvCachesShape& column : columns) {
      std::printf(" %d x %d |", column.batch, column.context);
    }
    std::printf("\n|---|");
    for (size_t i = 0; i < columns.size(); ++i) {
      std::printf("---|");
    }
    std::printf("\n");
    for (size_t figure = 0; figure < kNumFigures; ++figure) {
      std::printf("| **%s** |%s\n", kTitles[figure], std::string(columns.size(), '|').c_str());
      for (size_t layout = 0; layout < kNumKvLayouts; ++layout) {
        const std::vector<std::string>& cells = cells_[figure][layout];
        if (cells.empty()) {
          continue;
        }
        std::printf("| %s |", kNames[layout]);
        for (size_t column = 0; column < columns.size(); ++column) {
          const auto begin = cells.begin() + static_cast<std::ptrdiff_t>(column * num_block_sizes);
          const auto end = begin + static_cast<std::ptrdiff_t>(num_block_sizes);
          std::printf(" %s |", absl::StrJoin(begin, end, ", ").c_str());
        }
        std::printf("\n");
      }
    }
  }

 private:
  std::vector<std::string> cells_[kNumFigures][kNumKvLayouts];
};

std::string Number(double value) {
  return value >= 100  ? absl::StrFormat("%.0f", value)
         : value >= 10 ? absl::StrFormat("%.1f", value)
                       : absl::StrFormat("%.2f", value);
}

void AddCell(KvCaches& caches, Table* table) {
  constexpr double kMiB = 1 << 20;
  const KvCachesShape& shape = caches.shape();
  const Kernels kernels = TimeKernels(caches);
  for (size_t i = 0; i < kNumKvLayouts; ++i) {
    const KvLayout layout = kLayouts[i];
    const auto add = [&](Table::Figure figure, const auto& figure_of) {
      table->Add(figure, layout, caches.has(layout) ? Number(figure_of()) : "refused");
    };
    add(Table::kKernel, [&] { return i == 0 ? kernels.micros[i] / 1e3 : kernels.ratios[i]; });
    add(Table::kTables, [&] { return MedianMicros(51, [&] { caches.BuildTables(layout); }); });
    add(Table::kWasted, [&] { return WastedBytes(caches, layout) / kMiB; });
    if (HasBlocks(layout)) {
      const int32_t half = shape.context / 2 / shape.block_size_tokens;
      add(Table::kPrefixHit, [&] { return SharingMicros(caches, layout, half, false); });
      add(Table::kPrefixRun, [&] { return RunMicros(caches, layout, half); });
      const int32_t full = shape.blocks_per_seq() - 1;
      add(Table::kFork, [&] { return SharingMicros(caches, layout, full, true); });
    }
    if (HasWindows(layout)) {
      const double growths = static_cast<double>(shape.batch) / shape.block_size_tokens;
      add(Table::kMapping, [&] { return growths * GrowthMicros(caches, layout); });
      const std::string count = absl::StrCat(caches.num_mappings(layout));
      table->Add(Table::kMappings, layout, caches.has(layout) ? count : count + " refused");
    }
  }
}

std::vector<int32_t> Numbers(const std::string& text, int32_t multiple_of) {
  std::vector<int32_t> numbers;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    numbers.push_back(0);
    if (!absl::SimpleAtoi(part, &numbers.back()) || numbers.back() < 1 ||
        numbers.back() % multiple_of != 0) {
      std::fprintf(
          stderr, "kv_layouts_bench: not multiples of %d: %s\n", multiple_of, text.c_str());
      std::exit(kExitUsage);  // NOLINT(concurrency-mt-unsafe)
    }
  }
  return numbers;
}

struct Machine {
  std::unique_ptr<KernelBackend> memory;
  const KernelTable* table = nullptr;
  std::unique_ptr<ThreadTeam> team;
  DType dtype = DType::kBF16;

  KvCaches Caches(int32_t batch, int32_t context, int32_t block_size_tokens) const {
    return {{.batch = batch,
             .context = context,
             .block_size_tokens = block_size_tokens,
             .dtype = dtype},
            *memory,
            *table,
            *team};
  }
};

void PrintTable(const Machine& machine) {
  const std::vector<int32_t> contexts = Numbers(absl::GetFlag(FLAGS_contexts), 1);
  const std::vector<int32_t> block_sizes = Numbers(absl::GetFlag(FLAGS_block_sizes), 16);
  Table table;
  std::vector<KvCachesShape> columns;
  for (const int32_t context : contexts) {
    const int32_t batch = std::max(1, kTokens / context);
    columns.push_back({.batch = batch, .context = context});
    for (const int32_t block_size : block_sizes) {
      std::fprintf(stderr, "%d x %d, blocks of %d\n", batch, context, block_size);
      KvCaches caches = machine.Caches(batch, context, block_size);
      AddCell(caches, &table);
    }
  }
  std::printf("Sequences x context; in each cell blocks of %s tokens.\n\n",
              absl::StrJoin(block_sizes, ", ").c_str());
  table.Print(columns, block_sizes.size());
}

void PrintFigure18a(const Machine& machine) {
  std::printf(
      "\n| Figure 18a | paged, us a layer | contiguous [head][token], us | paged slower by "
      "| [token][head], us | paged slower by |\n|---|---|---|---|---|---|\n");
  for (const int32_t batch : {8, 32}) {
    for (const int32_t context : {64, 128, 256}) {
      KvCaches caches = machine.Caches(batch, context, 16);
      const Kernels kernels = TimeKernels(caches);
      const auto of_layer = [&](KvLayout layout) {
        return Number(kernels.micros[static_cast<size_t>(layout)] / KvCachesShape::kNumLayers);
      };
      const auto slower_by = [&](KvLayout layout) {
        const double ratio = kernels.ratios[static_cast<size_t>(layout)];
        return absl::StrFormat("%+.0f %%", 100 * (1 / ratio - 1));
      };
      std::printf("| batch %d, context %d | %s | %s | %s | %s | %s |\n",
                  batch,
                  context,
                  of_layer(KvLayout::kPagedHuge).c_str(),
                  of_layer(KvLayout::kPlainHeads).c_str(),
                  slower_by(KvLayout::kPlainHeads).c_str(),
                  of_layer(KvLayout::kPlain).c_str(),
                  slower_by(KvLayout::kPlain).c_str());
    }
  }
}

int Main() {
  Machine machine;
  machine.dtype = absl::GetFlag(FLAGS_fp32) ? DType::kF32 : DType::kBF16;
  machine.memory = *CreateCpuBackend({.num_threads = 1});
  for (const KernelTable& table : KernelTables()) {
    if (machine.table == nullptr && IsSupported(table)) {
      machine.table = &table;
    }
  }
  if (FindContiguousAttention(machine.table->isa, machine.dtype) == nullptr) {
    std::fprintf(stderr,
                 "kv_layouts_bench: no contiguous kernel for %s from %s\n",
                 machine.table->isa,
                 std::string(NameOf(machine.dtype)).c_str());
    return 1;
  }
  const int num_threads = std::max(1, absl::GetFlag(FLAGS_threads));
  machine.team = std::make_unique<ThreadTeam>(num_threads);
  std::printf("%s, %s, %d threads, vm.max_map_count %lld\n\n",
              machine.table->isa,
              std::string(NameOf(machine.dtype)).c_str(),
              num_threads,
              static_cast<long long>(MaxMappings()));
  PrintTable(machine);
  if (absl::GetFlag(FLAGS_figure_18a)) {
    PrintFigure18a(machine);
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::ParseCommandLineOrExit(argc,
                                argv,
                                {.name = "kv_layouts_bench",
                                 .usage = "[flags]",
                                 .summary = "Ways to keep a KV cache side by side."});
  return quire::Main();
}
