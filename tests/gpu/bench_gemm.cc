// The products of a Llama of 8 billion parameters, for the numbers of tokens that steps have. Each
// product runs with the library's fastest algorithm, and with the batch-invariant algorithm, which
// gives a row the same bits for any number of rows.
//
// Products of layers also run in FP8. Their time does not include the quantizing of rows, which the
// memory kernels measure (quantize_rows). The ratios of the variants' times are printed.
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
// bf16 outputs are off by at most 2^-9. fp32 outputs differ only by the order of additions.
constexpr double kMaxError = 5e-3;

double ProbedError(Bench& bench, const GemmArgs& args, const Buffer& squares) {
  Require(ProbeProduct({.rows = args.rows,
                        .out_features = args.out_features,
                        .in_features = args.in_features,
                        .dtype = args.dtype,
                        .x = args.x,
                        .weight = args.weight,
                        .x_scales = args.x_scales,
                        .weight_scales = args.weight_scales,
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
  DType dtype;  // of x and weights
  const char* name;
};

constexpr Variant kFastest = {false, DType::kBF16, "fastest"};
constexpr Variant kInvariant = {true, DType::kBF16, "batch-invariant"};
constexpr Variant kFastestFp8 = {false, DType::kF8E4M3, "fp8 fastest"};
constexpr Variant kInvariantFp8 = {true, DType::kF8E4M3, "fp8 batch-invariant"};

// Returns the time of one variant of the product.
double MeasureShape(Bench& bench,
                    const ProductShape& shape,
                    const std::vector<Buffer>& weights,
                    int64_t rows,
                    const Variant& variant) {
  const std::string name =
      std::string(shape.name) + ", " + std::to_string(rows) + " rows, " + variant.name;
  if (!bench.IsWantedCase(name)) {
    return 0.0;
  }
  void* gemm = bench.gemm(variant.batch_invariant);
  Buffer x = bench.RandomBuffer(variant.dtype, rows * shape.in_features);
  const Buffer x_scales = Fp8Scales(rows);
  const Buffer weight_scales = Fp8Scales(shape.out_features);
  Buffer y(rows * shape.out_features * SizeOf(shape.y_dtype));
  Buffer squares(kProbes * 2 * int64_t{sizeof(float)});
  GemmArgs args = {.rows = rows,
                   .out_features = shape.out_features,
                   .in_features = shape.in_features,
                   .x = x.at(0),
                   .y = y.at(0),
                   .dtype = variant.dtype,
                   .y_dtype = shape.y_dtype};
  if (variant.dtype == DType::kF8E4M3) {
    args.x_scales = x_scales.as<float>();
    args.weight_scales = weight_scales.as<float>();
  }
  const int num_sets = static_cast<int>(weights.size());

  Figure figure("gemm", name);
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
  figure.work.bytes = static_cast<double>(SizeOf(variant.dtype)) * (n * k + m * k) +
                      m * n * static_cast<double>(SizeOf(shape.y_dtype));

  // Runs once more on a poisoned output, with the weights that the probes use.
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

std::vector<Buffer> Weights(Bench& bench, const ProductShape& shape, DType dtype) {
  const int64_t count = shape.out_features * shape.in_features;
  const double bytes = static_cast<double>(count * SizeOf(dtype));
  // Fills e4m3 as quantize_rows leaves it, with values up to 448.
  const float scale = dtype == DType::kF8E4M3 ? 100.0F : 0.02F;
  std::vector<Buffer> weights;
  for (int set = 0; set < bench.NumSets(bytes); ++set) {
    weights.push_back(bench.RandomBuffer(dtype, count, scale));
  }
  return weights;
}

void AddRatio(
    Bench& bench, const ProductShape& shape, int64_t rows, const std::string& name, double ratio) {
  if (!bench.options().only_case.empty()) {
    return;
  }
  Figure figure("gemm", std::string(shape.name) + ", " + std::to_string(rows) + " rows, " + name);
  figure.Param("shape", shape.name).Param("rows", rows).Param("ratio", ratio);
  figure.note = "takes " + std::to_string(ratio) + " times as long";
  bench.Add(figure);
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

bool HasFp8(Bench& bench, const ProductShape& shape) {
  const GemmArgs args = {.rows = 64,
                         .out_features = shape.out_features,
                         .in_features = shape.in_features,
                         .dtype = DType::kF8E4M3,
                         .y_dtype = shape.y_dtype};
  void* gemm = bench.gemm(false);
  return shape.y_dtype != DType::kF32 && gemm != nullptr && CheckGemm(gemm, args) == 0;
}

Buffer Fp8Scales(int64_t count) {
  std::vector<float> scales(static_cast<size_t>(count));
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = 0.01F + 1e-4F * static_cast<float>(i % 100);
  }
  return Buffer::Of(scales);
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
  if (bench.gemm(false) == nullptr) {
    return;
  }
  std::vector<int64_t> row_counts = {1, 8, 64, 256, 2048};
  if (bench.quick()) {
    row_counts = {1, 64};
  }
  for (const ProductShape& shape : ProductShapes(bench)) {
    const bool has_fp8 = HasFp8(bench, shape);
    const std::vector<Buffer> weights = Weights(bench, shape, DType::kBF16);
    const std::vector<Buffer> fp8_weights =
        has_fp8 ? Weights(bench, shape, DType::kF8E4M3) : std::vector<Buffer>();
    for (const int64_t rows : row_counts) {
      if (bench.IsOutOfTime()) {
        return;
      }
      const double fastest = MeasureShape(bench, shape, weights, rows, kFastest);
      const double invariant = MeasureShape(bench, shape, weights, rows, kInvariant);
      AddRatio(bench, shape, rows, "batch-invariant / fastest", invariant / fastest);
      if (has_fp8) {
        const double fp8 = MeasureShape(bench, shape, fp8_weights, rows, kFastestFp8);
        MeasureShape(bench, shape, fp8_weights, rows, kInvariantFp8);
        AddRatio(bench, shape, rows, "fp8 / bf16", fp8 / fastest);
      }
    }
  }
}

}  // namespace quire::gpu
