// Sampling of one step: 64 rows of 128256 logits. Sampling overwrites the logits, so each repeat
// begins with a copy of them, whose time does not count. The floor is one reading of the rows.
#include <string>
#include <vector>

#include "tests/gpu/bench.h"

namespace quire::gpu {
namespace {

struct SamplingCase {
  std::string name;
  SampleRow row;
};

std::vector<SamplingCase> Cases() {
  return {
      {"greedy", {.temperature = 0.0F}},
      {"temperature 0.8", {.temperature = 0.8F}},
      {"temperature 0.8, top-k 50, top-p 0.9", {.temperature = 0.8F, .top_p = 0.9F, .top_k = 50}},
      {"temperature 1, top-p 0.95", {.temperature = 1.0F, .top_p = 0.95F}},
      {"temperature 1, top-p 0.9999", {.temperature = 1.0F, .top_p = 0.9999F}},
      {"greedy, 5 log-probabilities", {.temperature = 0.0F, .num_logprobs = 5}},
  };
}

constexpr int32_t kTopStride = 8;

// Memory for the outputs of one set.
struct Outputs {
  explicit Outputs(int32_t num_rows)
      : tokens(num_rows * int64_t{sizeof(TokenId)}),
        logprobs(num_rows * int64_t{sizeof(float)}),
        finite(num_rows * int64_t{sizeof(bool)}),
        top_logprobs(num_rows * int64_t{kTopStride} * int64_t{sizeof(SampledLogprob)}) {}

  Buffer tokens;
  Buffer logprobs;
  Buffer finite;
  Buffer top_logprobs;
};

bool AreValid(const Outputs& outputs, int32_t vocab_size) {
  bool valid = true;
  for (const TokenId token : outputs.tokens.ToHost<TokenId>()) {
    valid &= token >= 0 && token < vocab_size;
  }
  for (const uint8_t finite : outputs.finite.ToHost<uint8_t>()) {
    valid &= finite == 1;
  }
  return valid;
}

void MeasureCase(Bench& bench, const SamplingCase& sampling, int32_t num_rows, float scale) {
  const int32_t vocab_size = bench.Small(128256, 2048);
  const int64_t count = int64_t{num_rows} * vocab_size;
  const double bytes = static_cast<double>(count) * sizeof(float);
  const int num_sets = bench.NumSets(bytes);
  Buffer pristine = bench.RandomBuffer(DType::kF32, num_sets * count, scale);
  Buffer logits(pristine.bytes());
  std::vector<SampleRow> rows(static_cast<size_t>(num_rows), sampling.row);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].seed = 1000 + i;
  }
  Buffer device_rows = Buffer::Of(rows);
  std::vector<Outputs> outputs;
  for (int set = 0; set < num_sets; ++set) {
    outputs.emplace_back(num_rows);
  }

  const std::string spread = scale < 1.0F ? ", flat" : "";
  Figure figure("sampling", std::to_string(num_rows) + " rows, " + sampling.name + spread);
  figure.Param("num_rows", num_rows).Param("vocab_size", vocab_size).Param("logit_scale", scale);
  auto restore = [&] {
    Require(
        CopyOnDevice(
            logits.at(0), pristine.at(0), static_cast<size_t>(pristine.bytes()), bench.stream()),
        "restore logits");
  };
  restore();
  figure.timing = bench.Measure(
      num_sets,
      [&](int set) {
        const Outputs& out = outputs[static_cast<size_t>(set)];
        return Sample({.num_rows = num_rows,
                       .vocab_size = vocab_size,
                       .row_stride = vocab_size,
                       .logits = logits.as<float>() + set * count,
                       .token_ids = out.tokens.as<TokenId>(),
                       .logprobs = out.logprobs.as<float>(),
                       .finite = out.finite.as<bool>(),
                       .top_logprobs = out.top_logprobs.as<SampledLogprob>(),
                       .top_logprobs_stride = kTopStride},
                      {.rows = device_rows.as<SampleRow>()},
                      bench.stream());
      },
      restore);
  figure.work.bytes = bytes;
  for (const Outputs& out : outputs) {
    figure.ok &= AreValid(out, vocab_size);
  }
  bench.Add(figure);
}

}  // namespace

void MeasureSampling(Bench& bench) {
  constexpr float kPeaked = 3.0F;  // standard deviation, about that of a language model's logits
  constexpr float kFlat = 0.1F;
  const int32_t num_rows = bench.Small(64, 2);
  for (const SamplingCase& sampling : Cases()) {
    if (bench.IsOutOfTime()) {
      return;
    }
    MeasureCase(bench, sampling, num_rows, kPeaked);
  }
  if (bench.quick()) {
    return;
  }
  MeasureCase(bench, Cases()[3], num_rows, kFlat);
  for (const int32_t rows : {1, 256}) {
    MeasureCase(bench, Cases()[0], rows, kPeaked);
    MeasureCase(bench, Cases()[2], rows, kPeaked);
  }
}

}  // namespace quire::gpu
