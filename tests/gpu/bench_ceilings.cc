// The machine's peak rates, with which all other figures are compared.
#include <algorithm>
#include <string>

#include "kernels/cuda/gemm.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/bench_kernels.h"

namespace quire::gpu {
namespace {

constexpr int64_t kMebi = int64_t{1} << 20;
constexpr int64_t kTinyBytes = 64 << 10;

// Reads and writes 1 GiB each, by a copy in a graph and by a copy without one. The faster of the
// two counts.
Figure MeasureCopy(Bench& bench) {
  const int64_t bytes = bench.rehearse() ? kTinyBytes : 1024 * kMebi;
  Buffer from = bench.RandomBuffer(DType::kBF16, bytes / 2);
  Buffer to(bytes);
  Figure figure("ceilings", "copy on the device, read + written");
  auto copy = [&](int) {
    return CopyOnDevice(to.at(0), from.at(0), static_cast<size_t>(bytes), bench.stream());
  };
  const Timing in_graph = bench.Measure(1, copy);
  const Timing alone = bench.MeasureEagerly(copy);
  figure.timing = alone.median_us < in_graph.median_us ? alone : in_graph;
  figure.work.bytes = 2.0 * static_cast<double>(bytes);
  figure.ok = bench.IsEqual(from.at(0), to.at(0), bytes);
  return figure;
}

Figure MeasureRead(Bench& bench) {
  const int64_t bytes = bench.rehearse() ? kTinyBytes : 4096 * kMebi;
  Buffer data = bench.RandomBuffer(DType::kBF16, bytes / 2);
  Buffer sums(kReadThreads * int64_t{sizeof(uint32_t)});
  Figure figure("ceilings", "read without a write");
  figure.timing = bench.Measure(
      1, [&](int) { return ReadAll(data.at(0), bytes, sums.as<uint32_t>(), bench.stream()); });
  figure.work.bytes = static_cast<double>(bytes);
  return figure;
}

// Measures a square bf16 product. Returns false if there is no library for products.
bool MeasureProduct(Bench& bench, Figure* figure) {
  if (bench.gemm(false) == nullptr) {
    return false;
  }
  const int64_t n = bench.Small(8192, 32);
  Buffer x = bench.RandomBuffer(DType::kBF16, n * n);
  Buffer weight = bench.RandomBuffer(DType::kBF16, n * n);
  Buffer y(n * n * SizeOf(DType::kBF16));
  const GemmArgs args = {.rows = n,
                         .out_features = n,
                         .in_features = n,
                         .x = x.at(0),
                         .weight = weight.at(0),
                         .y = y.at(0)};
  figure->timing =
      bench.Measure(1, [&](int) { return RunGemm(bench.gemm(false), args, bench.stream()); });
  const auto size = static_cast<double>(n);
  figure->work.flops = 2.0 * size * size * size;
  figure->ok = bench.IsFinite(y.at(0), DType::kBF16, n * n);
  return true;
}

// Copies between pinned memory and the device: in each direction, then in both at once.
void MeasureLink(Bench& bench) {
  const int64_t bytes = bench.rehearse() ? kTinyBytes : 256 * kMebi;
  const auto size = static_cast<size_t>(bytes);
  PinnedBuffer host_in(bytes);
  PinnedBuffer host_out(bytes);
  Buffer in(bytes);
  Buffer out = bench.RandomBuffer(DType::kBF16, bytes / 2);
  Stream second = nullptr;
  Event fork = nullptr;
  Event join = nullptr;
  Require(CreateStream(&second), "create stream");
  Require(CreateEvent(&fork), "create event");
  Require(CreateEvent(&join), "create event");

  auto to_device = [&] { return CopyToDevice(in.at(0), host_in.at(0), size, bench.stream()); };
  auto to_host = [&](Stream stream) { return CopyToHost(host_out.at(0), out.at(0), size, stream); };
  auto add = [&](const std::string& name, double copied, const Bench::Call& call) {
    Figure figure("ceilings", name);
    figure.timing = bench.MeasureEagerly(call);
    figure.work.bytes = copied;
    figure.floor_us = figure.timing.median_us;  // this figure is a ceiling, so it is its own floor
    bench.Add(figure);
  };
  const auto copied = static_cast<double>(bytes);
  add("pinned host to device", copied, [&](int) { return to_device(); });
  add("device to pinned host", copied, [&](int) { return to_host(bench.stream()); });
  add("both directions at once, sum", 2.0 * copied, [&](int) {
    Require(RecordEvent(fork, bench.stream()), "record event");
    Require(WaitForEvent(fork, second), "wait for event");
    Require(to_device(), "copy");
    Require(to_host(second), "copy");
    Require(RecordEvent(join, second), "record event");
    return WaitForEvent(join, bench.stream());
  });

  bench.Wait();
  DestroyEvent(fork);
  DestroyEvent(join);
  DestroyStream(second);
}

}  // namespace

void MeasureCeilings(Bench& bench, bool print) {
  Ceilings ceilings = bench.ceilings();
  Figure copy("ceilings", "");
  if (ceilings.bytes_per_us <= 0.0 || print) {
    copy = MeasureCopy(bench);
    ceilings.bytes_per_us = copy.work.bytes / copy.timing.median_us;
  }
  Figure product("ceilings", "bf16 product 8192 x 8192 x 8192");
  if ((ceilings.flops_per_us <= 0.0 || print) && MeasureProduct(bench, &product)) {
    ceilings.flops_per_us = product.work.flops / product.timing.median_us;
  }
  bench.set_ceilings(ceilings);
  if (!print) {
    return;
  }
  bench.Add(copy);
  bench.Add(MeasureRead(bench));
  if (product.timing.median_us > 0.0) {
    bench.Add(product);
  }
  MeasureLink(bench);
}

}  // namespace quire::gpu
