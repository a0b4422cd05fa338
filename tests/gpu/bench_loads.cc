// Reads of pages without any work on them: {cp.async of 16 bytes, bulk copies of 2, 4, 8, 16 KiB} x
// {32, 64, 128, 192 KB in flight per SM} x {1, 2, 3 CTAs per SM}. The pages are read in random
// order and, as the upper bound, one after the other. load_kernels.h says why tensor maps are left
// out.
#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/bench.h"
#include "tests/gpu/load_kernels.h"

namespace quire::gpu {
namespace {

constexpr int32_t kKibi = 1024;
constexpr int32_t kLeastPageBytes = 8 * kKibi;  // a block of 16 tokens and a head of 128, in bf16

struct LoadCase {
  LoadKind kind = LoadKind::kBulk;
  int32_t piece_bytes = 0;
  int32_t in_flight_bytes = 0;  // per SM
  int32_t ctas_an_sm = 1;
};

std::string Name(const LoadCase& load, bool paged) {
  const std::string copy = load.kind == LoadKind::kAsync16
                               ? "cp.async 16 B"
                               : "bulk " + std::to_string(load.piece_bytes / kKibi) + " KiB";
  return copy + ", " + std::to_string(load.in_flight_bytes / kKibi) + " KiB in flight, " +
         std::to_string(load.ctas_an_sm) + " CTAs" + (paged ? "" : ", contiguous");
}

// Returns how many stages a CTA has, the same number for each of its warps. Returns 0 if no stage
// fits.
int32_t NumStages(const LoadCase& load) {
  constexpr int32_t kWarps = 4;
  const int32_t stages = load.in_flight_bytes / load.ctas_an_sm / load.piece_bytes;
  const int32_t warps = std::min(stages, kWarps);
  return load.kind == LoadKind::kAsync16 || stages == 0 ? stages : stages / warps * warps;
}

// Returns the places of pages: in random order if paged, else one after the other.
Buffer PageTable(int32_t num_pages, bool paged) {
  constexpr uint32_t kSeed = 20261130;
  std::vector<int32_t> places(static_cast<size_t>(num_pages));
  std::iota(places.begin(), places.end(), 0);
  if (paged) {
    std::shuffle(places.begin(), places.end(), std::mt19937(kSeed));
  }
  return Buffer::Of(places);
}

uint32_t SumAfter(Bench& bench, Buffer& sum, const Bench::Call& call) {
  Require(FillBytes(sum.at(0), 0, sizeof(uint32_t), bench.stream()), "clear sum");
  Require(call(0), "load");
  bench.Wait();
  return sum.ToHost<uint32_t>()[0];
}

void Measure(Bench& bench, const Buffer& data, const LoadCase& load, bool paged) {
  Buffer sum(int64_t{sizeof(uint32_t)});
  LoadArgs args = {.data = data.at(0),
                   .page_bytes = std::max(kLeastPageBytes, load.piece_bytes),
                   .piece_bytes = load.piece_bytes,
                   .num_stages = NumStages(load),
                   .num_ctas = load.ctas_an_sm * bench.device().num_multiprocessors,
                   .sum = sum.as<uint32_t>()};
  args.num_pages = static_cast<int32_t>(data.bytes() / args.page_bytes);
  const Buffer table = PageTable(args.num_pages, paged);
  args.table = table.as<int32_t>();

  Figure figure("loads", Name(load, paged));
  figure.Param("kind", load.kind == LoadKind::kAsync16 ? "cp.async" : "bulk");
  figure.Param("piece_bytes", load.piece_bytes).Param("in_flight_bytes", load.in_flight_bytes);
  figure.Param("ctas_an_sm", load.ctas_an_sm).Param("stages", args.num_stages);
  figure.Param("paged", paged);
  const auto read = [&](int) { return LoadPages(args, load.kind, bench.stream()); };
  if (read(0) == kUnsupported) {
    return;
  }
  figure.timing = bench.Measure(1, read);
  figure.work.bytes = static_cast<double>(args.num_pages) * args.page_bytes;
  const uint32_t expected =
      SumAfter(bench, sum, [&](int) { return SumFirstWords(args, bench.stream()); });
  figure.ok = SumAfter(bench, sum, read) == expected;
  bench.Add(figure);
}

std::vector<LoadCase> LoadCases(const Bench& bench) {
  std::vector<int32_t> in_flight = {32 * kKibi, 64 * kKibi, 128 * kKibi, 192 * kKibi};
  std::vector<int32_t> ctas = {1, 2, 3};
  if (bench.quick()) {
    in_flight = {64 * kKibi};
    ctas = {2};
  }
  std::vector<LoadCase> cases;
  for (const int32_t in_flight_bytes : in_flight) {
    for (const int32_t ctas_an_sm : ctas) {
      cases.push_back({LoadKind::kAsync16, 8 * kKibi, in_flight_bytes, ctas_an_sm});
      for (const int32_t kibi : {2, 4, 8, 16}) {
        cases.push_back({LoadKind::kBulk, kibi * kKibi, in_flight_bytes, ctas_an_sm});
      }
    }
  }
  std::erase_if(cases, [](const LoadCase& load) { return NumStages(load) == 0; });
  return cases;
}

}  // namespace

void MeasureLoads(Bench& bench) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  constexpr int64_t kTinyBytes = int64_t{3} << 20;
  const Buffer data =
      bench.RandomBuffer(DType::kBF16, (bench.rehearse() ? kTinyBytes : kBytes) / 2);
  for (const LoadCase& load : LoadCases(bench)) {
    for (const bool paged : {true, false}) {
      if (bench.IsOutOfTime()) {
        return;
      }
      Measure(bench, data, load, paged);
    }
  }
}

}  // namespace quire::gpu
