// A row's bits must not depend on what else is in the batch, how many CTAs run, or whether a graph
// replays the step. The tests show this for small shapes. This file shows it for large shapes, and
// for the products of cuBLASLt, which does not promise it.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/bench_attention.h"
#include "tests/gpu/bench_gemm.h"
#include "tests/gpu/bench_kernels.h"

namespace quire::gpu {
namespace {

constexpr int kRuns = 10;

void AddCheck(Bench& bench, const std::string& name, bool ok, const std::string& note = "") {
  Figure figure("bits", name);
  figure.ok = ok;
  figure.note = note.empty() && ok ? "same bits" : note;
  bench.Add(figure);
}

// Compares the first set's output of a run with that of an earlier run.
class Comparison {
 public:
  Comparison(Bench& bench, AttentionBatch& batch)
      : bench_(bench), batch_(batch), expected_(batch.out_bytes_a_set()) {}

  void Expect(const std::function<int()>& run) {
    Run(run);
    Require(CopyOnDevice(expected_.at(0),
                         batch_.Args(0).out,
                         static_cast<size_t>(expected_.bytes()),
                         bench_.stream()),
            "keep output");
    bench_.Wait();
  }

  bool IsSameAfter(const std::function<int()>& run) {
    Run(run);
    return bench_.IsEqual(expected_.at(0), batch_.Args(0).out, expected_.bytes());
  }

 private:
  void Run(const std::function<int()>& run) {
    batch_.out().Poison();
    Require(run(), "attention");
    bench_.Wait();
  }

  Bench& bench_;
  AttentionBatch& batch_;
  Buffer expected_;
};

// Records `run` as a graph and launches it twice. The second launch finds what the first one has
// left in counters.
int RunTwiceByGraph(Bench& bench, AttentionBatch& batch, const std::function<int()>& run) {
  Graph graph = nullptr;
  Require(BeginGraph(bench.stream()), "begin graph");
  Require(run(), "attention");
  Require(EndGraph(bench.stream(), &graph), "end graph");
  int error = LaunchGraph(graph, bench.stream());
  bench.Wait();
  batch.out().Poison();
  error = error != 0 ? error : LaunchGraph(graph, bench.stream());
  bench.Wait();
  Require(DestroyGraph(graph), "destroy graph");
  return error;
}

// Returns 24 sequences with contexts of very different lengths, up to 8192 tokens.
std::vector<SequenceLengths> MixedLengths(const Bench& bench,
                                          int32_t query_len,
                                          int32_t tiny_context) {
  std::vector<SequenceLengths> sequences;
  const int32_t count = bench.Small(24, 3);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t context = i * i * bench.Small(8192, tiny_context) / (count * count);
    const int32_t queries = query_len > 1 ? query_len + 17 * i : 1;
    sequences.push_back({.query_len = queries, .seq_len = context + queries});
  }
  return sequences;
}

AttentionShape Shape(const Bench& bench, DType cache_dtype) {
  AttentionShape shape;
  shape.cache_dtype = cache_dtype;
  if (bench.rehearse()) {
    shape.num_heads = 4;
    shape.num_kv_heads = 2;
    shape.head_dim = 64;
  }
  return shape;
}

// Checks one kernel of decode on one batch. Each run has a separate plan and separate partial
// results.
class DecodeCheck {
 public:
  DecodeCheck(Bench& bench, AttentionBatch& batch, const DecodeOptions& options, std::string prefix)
      : bench_(bench),
        batch_(batch),
        options_(options),
        prefix_(std::move(prefix)),
        comparison_(bench, batch) {}

  void Run(int32_t grid) {
    comparison_.Expect([&] { return RunOnce(grid, -1); });
    CheckRuns(prefix_ + "run ten times", std::vector<int32_t>(kRuns, grid));
    CheckRuns(prefix_ + "7 to four times as many CTAs", {7, grid / 3 + 1, 2 * grid, 4 * grid + 1});
    AddCheck(bench_, prefix_ + "replayed by a graph", comparison_.IsSameAfter([&] {
      return Replay(grid);
    }));
    AddCheck(bench_, prefix_ + "each sequence alone", comparison_.IsSameAfter([&] {
      const auto count = static_cast<int32_t>(batch_.sequences().size());
      int error = 0;
      for (int32_t i = 0; i < count && error == 0; ++i) {
        error = RunOnce(grid, i);
      }
      return error;
    }));
  }

 private:
  void CheckRuns(const std::string& name, const std::vector<int32_t>& grids) {
    bool ok = true;
    for (const int32_t num_ctas : grids) {
      ok &= comparison_.IsSameAfter([&] { return RunOnce(num_ctas, -1); });
    }
    AddCheck(bench_, name, ok);
  }

  DecodeScratch Plan(int32_t num_ctas, int32_t only_sequence) {
    DecodeOptions options = options_;
    options.num_ctas = num_ctas;
    options.only_sequence = only_sequence;
    return std::move(*DecodeScratch::Make(bench_, batch_, options));
  }

  int Decode(const DecodeScratch& scratch) {
    return gpu::Decode(batch_.Args(0), scratch.plan(), batch_.shape().dtype, bench_.stream());
  }

  int RunOnce(int32_t num_ctas, int32_t only_sequence) {
    const DecodeScratch scratch = Plan(num_ctas, only_sequence);
    const int error = Decode(scratch);
    bench_.Wait();
    return error;
  }

  int Replay(int32_t num_ctas) {
    const DecodeScratch scratch = Plan(num_ctas, -1);
    return RunTwiceByGraph(bench_, batch_, [&] { return Decode(scratch); });
  }

  Bench& bench_;
  AttentionBatch& batch_;
  const DecodeOptions options_;
  const std::string prefix_;
  Comparison comparison_;
};

void CheckDecode(Bench& bench,
                 KvPool& pool,
                 DType cache_dtype,
                 const DecodeChoice& choice,
                 int32_t num_queries) {
  const AttentionShape shape = Shape(bench, cache_dtype);
  std::vector<SequenceLengths> sequences = MixedLengths(bench, 1, /*tiny_context=*/700);
  for (SequenceLengths& sequence : sequences) {
    sequence.query_len = num_queries;
    sequence.seq_len += num_queries - 1;
  }
  auto batch = AttentionBatch::Make(bench, pool, shape, sequences);
  if (!batch.has_value()) {
    bench.report().Say("  not enough memory");
    return;
  }
  // With 64 tokens per split, even the short sequences of a rehearsal have several splits.
  const DecodeOptions options = {
      .kernel = choice.kernel, .split_tokens = bench.Small(0, 64), .max_query_tokens = num_queries};
  const auto scratch = DecodeScratch::Make(bench, *batch, options);
  if (scratch.has_value()) {
    const std::string prefix =
        "decode by " + std::string(choice.name) + ", " + std::string(NameOf(cache_dtype)) +
        (num_queries > 1 ? ", " + std::to_string(num_queries) + " queries" : "") + ": ";
    DecodeCheck(bench, *batch, options, prefix).Run(scratch->plan().num_ctas);
  }
}

void CheckDecodes(Bench& bench, KvPool& pool, DType cache_dtype) {
  for (const DecodeChoice& choice : kDecodeChoices) {
    if (IsChosen(bench.options().decode_kernels, choice)) {
      CheckDecode(bench, pool, cache_dtype, choice, 1);
      CheckDecode(bench, pool, cache_dtype, choice, 3);
    }
  }
}

void CheckPrefill(Bench& bench, KvPool& pool, const PrefillChoice& choice) {
  const AttentionShape shape = Shape(bench, DType::kBF16);
  const std::string name = std::string("prefill, ") + choice.name;
  auto batch = AttentionBatch::Make(
      bench, pool, shape, MixedLengths(bench, bench.Small(300, 20), /*tiny_context=*/90));
  if (!batch.has_value()) {
    bench.report().Say("  not enough memory");
    return;
  }
  auto run = [&](int32_t only_sequence, int32_t num_ctas) {
    const PrefillScratch scratch(
        *batch, {.kernel = choice.kernel, .only_sequence = only_sequence, .num_ctas = num_ctas});
    const int error = Prefill(batch->Args(0), scratch.plan(), shape.dtype, bench.stream());
    bench.Wait();
    return error;
  };
  if (run(-1, 0) == kUnsupported) {
    return;
  }
  Comparison comparison(bench, *batch);
  comparison.Expect([&] { return run(-1, 0); });

  bool ok = true;
  for (int i = 0; i < kRuns; ++i) {
    ok &= comparison.IsSameAfter([&] { return run(-1, 0); });
  }
  AddCheck(bench, name + ": run ten times", ok);
  if (choice.kernel == PrefillKernel::kPersistent) {
    ok = true;
    for (const int32_t num_ctas : {1, 7, 2 * bench.device().num_multiprocessors}) {
      ok &= comparison.IsSameAfter([&] { return run(-1, num_ctas); });
    }
    AddCheck(bench, name + ": 1 to twice as many CTAs", ok);
  }
  const PrefillScratch scratch(*batch, {.kernel = choice.kernel});
  AddCheck(bench, name + ": replayed by a graph", comparison.IsSameAfter([&] {
    return RunTwiceByGraph(bench, *batch, [&] {
      return Prefill(batch->Args(0), scratch.plan(), shape.dtype, bench.stream());
    });
  }));
  AddCheck(bench, name + ": each sequence alone", comparison.IsSameAfter([&] {
    int error = 0;
    for (size_t i = 0; i < batch->sequences().size() && error == 0; ++i) {
      error = run(static_cast<int32_t>(i), 0);
    }
    return error;
  }));
}

// Multiplies the same row of x as the first and as the last of M rows, for all M. Returns each M
// for which the row's bits differ from those of the row alone.
std::vector<int64_t> RowsThatChangeBits(Bench& bench,
                                        void* gemm,
                                        const ProductShape& shape,
                                        DType dtype,
                                        const std::vector<int64_t>& row_counts) {
  const int64_t most = *std::max_element(row_counts.begin(), row_counts.end());
  const int64_t x_row_bytes = shape.in_features * SizeOf(dtype);
  const int64_t y_row_bytes = shape.out_features * SizeOf(shape.y_dtype);
  const bool is_fp8 = dtype == DType::kF8E4M3;
  Buffer weight =
      bench.RandomBuffer(dtype, shape.out_features * shape.in_features, is_fp8 ? 2.0F : 0.02F);
  Buffer others = bench.RandomBuffer(dtype, most * shape.in_features);
  // All rows have the same scale, so the row has this scale at every place.
  const Buffer x_scales = Buffer::Of(std::vector<float>(static_cast<size_t>(most), 0.01F));
  const Buffer weight_scales = Fp8Scales(shape.out_features);
  Buffer x(most * x_row_bytes);
  Buffer y(most * y_row_bytes);
  Buffer expected(y_row_bytes);
  Buffer counters = Buffer::Of(std::vector<int32_t>(row_counts.size(), 0));
  auto copy = [&](void* to, const void* from, int64_t bytes) {
    Require(CopyOnDevice(to, from, static_cast<size_t>(bytes), bench.stream()), "copy rows");
  };
  auto multiply = [&](int64_t rows) {
    const GemmArgs args = {.rows = rows,
                           .out_features = shape.out_features,
                           .in_features = shape.in_features,
                           .x = x.at(0),
                           .weight = weight.at(0),
                           .y = y.at(0),
                           .dtype = dtype,
                           .y_dtype = shape.y_dtype,
                           .x_scales = is_fp8 ? x_scales.as<float>() : nullptr,
                           .weight_scales = is_fp8 ? weight_scales.as<float>() : nullptr};
    Require(RunGemm(gemm, args, bench.stream()), "product");
  };

  copy(x.at(0), others.at(0), x_row_bytes);
  multiply(1);
  copy(expected.at(0), y.at(0), y_row_bytes);
  for (size_t i = 0; i < row_counts.size(); ++i) {
    const int64_t last = row_counts[i] - 1;
    copy(x.at(0), others.at(0), x.bytes());
    copy(x.at(last * x_row_bytes), others.at(0), x_row_bytes);
    multiply(row_counts[i]);
    for (const int64_t row : {int64_t{0}, last}) {
      Require(CountDifferent(expected.at(0),
                             y.at(row * y_row_bytes),
                             y_row_bytes,
                             counters.as<int32_t>() + i,
                             bench.stream()),
              "compare rows");
    }
  }
  bench.Wait();
  const std::vector<int32_t> differences = counters.ToHost<int32_t>();
  std::vector<int64_t> changed;
  for (size_t i = 0; i < row_counts.size(); ++i) {
    if (differences[i] != 0) {
      changed.push_back(row_counts[i]);
    }
  }
  return changed;
}

std::string Summary(const std::vector<int64_t>& changed, size_t num_counts) {
  std::string text = std::to_string(changed.size()) + " of " + std::to_string(num_counts) +
                     " numbers of rows change the bits";
  for (size_t i = 0; i < changed.size() && i < 8; ++i) {
    text += (i == 0 ? ": " : ", ") + std::to_string(changed[i]);
  }
  return text;
}

void CheckProducts(Bench& bench) {
  void* invariant = bench.gemm(true);
  if (invariant == nullptr) {
    return;
  }
  std::vector<int64_t> all;
  for (int64_t rows = 1; rows <= bench.Small(512, 5); ++rows) {
    all.push_back(rows);
  }
  for (const ProductShape& shape : ProductShapes(bench)) {
    if (bench.IsOutOfTime()) {
      return;
    }
    for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
      if (dtype == DType::kF8E4M3 && !HasFp8(bench, shape)) {
        continue;
      }
      const auto changed = RowsThatChangeBits(bench, invariant, shape, dtype, all);
      AddCheck(
          bench,
          std::string("batch-invariant product ") + shape.name + " " + std::string(NameOf(dtype)),
          changed.empty(),
          Summary(changed, all.size()));
    }
  }
  // Compares rows of the fastest algorithms too, which promise nothing, so this is not a check.
  // Each shape is timed first.
  const std::vector<int64_t> some = {1, 2, 3, 4, 8, 16, 32, 64, 96, 128, 192, 256};
  const ProductShape shape = ProductShapes(bench)[0];
  const auto changed = RowsThatChangeBits(
      bench, bench.gemm(false), shape, DType::kBF16, bench.rehearse() ? all : some);
  AddCheck(bench,
           std::string("fastest product ") + shape.name + ", no promise",
           true,
           Summary(changed, some.size()));
}

void CheckNorm(Bench& bench) {
  const int32_t num_tokens = bench.Small(300, 9);
  const int32_t width = bench.Small(4096, 256);
  const int64_t count = int64_t{num_tokens} * width;
  Buffer residual = bench.RandomBuffer(DType::kF32, count);
  Buffer weight = bench.RandomBuffer(DType::kF32, width);
  Buffer together(count * SizeOf(DType::kBF16));
  Buffer alone(count * SizeOf(DType::kBF16));
  auto run = [&](int32_t first, int32_t tokens, const Buffer& out) {
    const int64_t at = int64_t{first} * width;
    Require(Norm({.num_tokens = tokens,
                  .width = width,
                  .residual = residual.as<float>() + at,
                  .weight = weight.as<float>(),
                  .out = out.at(at * SizeOf(DType::kBF16))},
                 DType::kBF16,
                 bench.stream()),
            "norm");
  };

  run(0, num_tokens, together);
  for (int32_t token = 0; token < num_tokens; ++token) {
    run(token, 1, alone);
  }

  AddCheck(
      bench, "norm: each row alone", bench.IsEqual(together.at(0), alone.at(0), together.bytes()));
}

}  // namespace

void CheckBits(Bench& bench) {
  {
    KvPool pool(bench);
    CheckDecodes(bench, pool, DType::kBF16);
    for (const PrefillChoice& choice : kPrefillChoices) {
      if (IsChosen(bench.options().prefill_kernels, choice)) {
        CheckPrefill(bench, pool, choice);
      }
    }
    CheckDecodes(bench, pool, DType::kF8E4M3);
  }
  CheckNorm(bench);
  CheckProducts(bench);
}

}  // namespace quire::gpu
