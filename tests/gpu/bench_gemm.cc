// The products of a Llama of 8 billion parameters at the numbers of tokens that steps have. Each is
// run with the library's fastest algorithm and with the one that gives a row the same bits whatever
// the number of rows (batch-invariant); what that costs is printed.
#include "tests/gpu/bench_gemm.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/bench_kernels.h"

namespace quire::gpu {
namespace {

constexpr int32_t kProbes = 64;
// bf16 outputs are off by 2^-9 at most, fp32 ones by the order of the additions.
constexpr double kMaxError = 5e-3;

double ProbedError(Bench& bench, const GemmArgs& args, const Buffer& squares) {
  Require(ProbeProduct({.rows = args.rows,
                        .out_features = args.out_features,
                        .in_features = args.in_features,
                        .x = args.x,
                        .weight = args.weight,
                        .y = args.y,
                        .y_dtype = args.y_dtype,
                        .num_probes = kProbes,
                        .squares = squares.as<float>()},
                       bench.stream()),
          "probe product");
  bench.Wait();
  return RelativeError(squares.ToHost<float>());
}

struct Variant {
  bool batch_invariant;
  const char* name;
};

// The time of the fastest, or of the batch-invariant product.
double MeasureShape(Bench& bench,
                    const ProductShape& shape,
                    const std::vector<Buffer>& weights,
                    int64_t rows,
                    const Variant& variant) {
  void* gemm = bench.gemm(variant.batch_invariant);
  Buffer x = bench.RandomBuffer(DType::kBF16, rows * shape.in_features);
  Buffer y(rows * shape.out_features * SizeOf(shape.y_dtype));
  Buffer squares(kProbes * 2 * int64_t{sizeof(float)});
  GemmArgs args = {.rows = rows,
                   .out_features = shape.out_features,
                   .in_features = shape.in_features,
                   .x = x.at(0),
                   .y = y.at(0),
                   .dtype = DType::kBF16,
                   .y_dtype = shape.y_dtype};
  const int num_sets = static_cast<int>(weights.size());

  Figure figure("gemm",
                std::string(shape.name) + ", " + std::to_string(rows) + " rows, " + variant.name);
  figure.Param("shape", shape.name).Param("rows", rows).Param("variant", variant.name);
  figure.Param("out_features", shape.out_features).Param("in_features", shape.in_features);
  figure.Param("y_dtype", std::string(NameOf(shape.y_dtype)));
  figure.timing = bench.Measure(num_sets, [&](int set) {
    args.weight = weights[static_cast<size_t>(set)].at(0);
    return RunGemm(gemm, args, bench.stream());
  });
  const auto m = static_cast<double>(rows);
  const auto n = static_cast<double>(shape.out_features);
  const auto k = static_cast<double>(shape.in_features);
  figure.work.flops = 2.0 * m * n * k;
  figure.work.bytes = 2.0 * (n * k + m * k) + m * n * static_cast<double>(SizeOf(shape.y_dtype));

  // Once more from poison, with the weights the probes are to use.
  y.Poison();
  args.weight = weights[0].at(0);
  Require(RunGemm(gemm, args, bench.stream()), "product");
  bench.Wait();
  figure.error = ProbedError(bench, args, squares);
  figure.ok = figure.error <= kMaxError &&
              bench.IsFinite(y.at(0), shape.y_dtype, rows * shape.out_features);
  bench.Add(figure);
  return figure.timing.median_us;
}

}  // namespace

std::vector<ProductShape> ProductShapes(const Bench& bench) {
  if (bench.rehearse()) {
    return {{"out", 64, 64, DType::kBF16}, {"lm_head", 128, 64, DType::kF32}};
  }
  return {{"qkv", 6144, 4096, DType::kBF16},
          {"out", 4096, 4096, DType::kBF16},
          {"gate_up", 28672, 4096, DType::kBF16},
          {"down", 4096, 14336, DType::kBF16},
          {"lm_head", 128256, 4096, DType::kF32}};
}

double RelativeError(const std::vector<float>& squares) {
  double errors = 0.0;
  double values = 0.0;
  for (size_t i = 0; i + 1 < squares.size(); i += 2) {
    errors += double{squares[i]};
    values += double{squares[i + 1]};
  }
  const double error = std::sqrt(errors / values);
  return std::isnan(error) ? HUGE_VAL : error;
}

void MeasureGemm(Bench& bench) {
  constexpr Variant kFastest = {false, "fastest"};
  constexpr Variant kInvariant = {true, "batch-invariant"};
  if (bench.gemm(false) == nullptr) {
    return;
  }
  std::vector<int64_t> row_counts = {1, 8, 64, 256, 2048};
  if (bench.quick()) {
    row_counts = {1, 64};
  }
  for (const ProductShape& shape : ProductShapes(bench)) {
    const int64_t count = shape.out_features * shape.in_features;
    std::vector<Buffer> weights;
    for (int set = 0; set < bench.NumSets(2.0 * static_cast<double>(count)); ++set) {
      weights.push_back(bench.RandomBuffer(DType::kBF16, count, 0.02F));
    }
    for (const int64_t rows : row_counts) {
      if (bench.IsOutOfTime()) {
        return;
      }
      const double fastest = MeasureShape(bench, shape, weights, rows, kFastest);
      const double invariant = MeasureShape(bench, shape, weights, rows, kInvariant);
      Figure cost("gemm",
                  std::string(shape.name) + ", " + std::to_string(rows) +
                      " rows, batch-invariant / fastest");
      cost.Param("shape", shape.name).Param("rows", rows).Param("ratio", invariant / fastest);
      cost.note = "takes " + std::to_string(invariant / fastest) + " times as long";
      bench.Add(cost);
    }
  }
}

}  // namespace quire::gpu
