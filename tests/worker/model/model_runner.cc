#include "tests/worker/model/model_runner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "common/base/check.h"
#include "common/base/math.h"
#include "common/json/json.h"

namespace quire {

std::vector<std::string> GoldenModels(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::vector<GoldenCase> ReadGolden(const std::string& path) {
  absl::StatusOr<Json> json = ParseJsonFile(path, int64_t{16} << 20);
  if (!json.ok()) {
    std::fprintf(stderr, "%s\n", std::string(json.status().message()).c_str());
    std::abort();
  }
  std::vector<GoldenCase> cases;
  for (const Json& entry : (*json)["cases"]) {
    GoldenCase& golden = cases.emplace_back();
    golden.prompt = entry["prompt"].get<std::vector<TokenId>>();
    for (const Json& step : entry["steps"]) {
      golden.steps.push_back({.token = step["token"].get<TokenId>(),
                              .logprob = step["logprob"].get<double>(),
                              .top_tokens = step["top_tokens"].get<std::vector<TokenId>>(),
                              .top_logprobs = step["top_logprobs"].get<std::vector<double>>()});
    }
  }
  return cases;
}

std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - max);
  }
  std::vector<double> logprobs;
  for (float logit : logits) {
    logprobs.push_back(static_cast<double>(logit) - max - std::log(sum));
  }
  return logprobs;
}

std::vector<float> ReadBack(KernelBackend& backend, const void* device, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  auto host = backend.AllocateHost(count * int64_t{sizeof(float)});
  QUIRE_CHECK(host.ok());
  // The whole memory is one block.
  KvCacheLayout layout;
  layout.dtype = DType::kF32;
  layout.block_stride = count;
  const std::array<BlockId, 1> first = {0};
  backend.StartTransfer(
      {.direction = TransferDirection::kToHost,
       .cache = {.base = const_cast<void*>(device), .num_blocks = 1, .layout = layout},
       .host = static_cast<std::byte*>((*host)->data()),
       .blocks = first,
       .host_blocks = first});
  backend.WaitForTransfers();
  std::memcpy(values.data(), (*host)->data(), values.size() * sizeof(float));
  return values;
}

ModelRunner::ModelRunner(Model& model,
                         KernelBackend& backend,
                         int64_t num_blocks,
                         std::optional<DType> kv_cache_dtype)
    : model_(model), backend_(backend) {
  const ModelConfig& config = model.config();
  cache_.layout = backend.LayoutFor({.num_layers = config.num_layers,
                                     .num_kv_heads = model.share().kv_heads.count,
                                     .head_dim = config.head_dim,
                                     .block_size_tokens = kBlockSizeTokens,
                                     .dtype = kv_cache_dtype.value_or(backend.activation_dtype())});
  cache_.num_blocks = num_blocks;
  const int64_t bytes = num_blocks * cache_.layout.block_bytes();
  auto pool = backend.Allocate(bytes);
  QUIRE_CHECK(pool.ok());
  pool_ = *std::move(pool);
  // Poisons the pool with NaN, because a block's earlier content must never be read.
  const std::vector<unsigned char> poison(static_cast<size_t>(bytes), 0xFF);
  backend.Upload(pool_->data(), poison.data(), bytes);
  cache_.base = pool_->data();
  // Hands out every third block, then the next ones, so that neighbours in a table are not
  // neighbours in memory.
  for (int64_t first = 1; first <= 3; ++first) {
    for (int64_t block = first; block < num_blocks; block += 3) {
      free_blocks_.push_back(static_cast<BlockId>(block));
    }
  }
}

int ModelRunner::AddSequence() {
  sequences_.emplace_back();
  return static_cast<int>(sequences_.size()) - 1;
}

BlockId ModelRunner::TakeBlock() {
  QUIRE_CHECK(!free_blocks_.empty());
  BlockId block = free_blocks_.back();
  free_blocks_.pop_back();
  return block;
}

Batch ModelRunner::MakeBatch(const std::vector<Slice>& slices) {
  Batch batch;
  batch.query_start.push_back(0);
  for (const Slice& slice : slices) {
    Sequence& sequence = sequences_[static_cast<size_t>(slice.sequence)];
    for (TokenId token : slice.tokens) {
      if (sequence.num_tokens % kBlockSizeTokens == 0) {
        sequence.blocks.push_back(TakeBlock());
      }
      batch.token_ids.push_back(token);
      batch.positions.push_back(sequence.num_tokens);
      batch.slot_mapping.push_back(int64_t{sequence.blocks.back()} * kBlockSizeTokens +
                                   sequence.num_tokens % kBlockSizeTokens);
      ++sequence.num_tokens;
    }
    batch.query_start.push_back(batch.num_tokens());
    batch.seq_lens.push_back(sequence.num_tokens);
    batch.begins_in_prompt.push_back(slice.are_of_prompt ? 1 : 0);
    batch.logits_rows.push_back(batch.num_tokens() - 1);
    batch.max_blocks_per_seq =
        std::max(batch.max_blocks_per_seq, static_cast<int32_t>(sequence.blocks.size()));
  }
  for (const Slice& slice : slices) {
    std::vector<BlockId> table = sequences_[static_cast<size_t>(slice.sequence)].blocks;
    table.resize(static_cast<size_t>(batch.max_blocks_per_seq), kNullBlockId);
    batch.block_tables.insert(batch.block_tables.end(), table.begin(), table.end());
  }
  return batch;
}

std::vector<std::vector<float>> ModelRunner::Run(const std::vector<Slice>& slices) {
  return ReadRows(model_.Forward(MakeBatch(slices), cache_), slices.size());
}

std::vector<std::vector<float>> ModelRunner::RunAndScore(const std::vector<Slice>& slices,
                                                         int32_t max_rows) {
  const Batch batch = MakeBatch(slices);
  const int32_t num_tokens = batch.num_tokens();
  QUIRE_CHECK(model_.Reserve({.max_tokens = num_tokens, .max_seqs = max_rows}).ok());
  model_.Forward(batch, cache_);
  std::vector<std::vector<float>> rows;
  for (int32_t row = 0; row < num_tokens; row += max_rows) {
    const int32_t num_rows = std::min(max_rows, num_tokens - row);
    const auto more = ReadRows(model_.LogitsOf(row, num_rows), static_cast<size_t>(num_rows));
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

std::vector<std::vector<float>> ModelRunner::ReadRows(const float* on_device, size_t num_rows) {
  if (on_device == nullptr) {
    return {};
  }
  const int64_t vocab_size = model_.config().vocab_size;
  const std::vector<float> logits =
      ReadBack(backend_, on_device, static_cast<int64_t>(num_rows) * vocab_size);
  std::vector<std::vector<float>> rows;
  for (auto row = logits.begin(); row != logits.end(); row += vocab_size) {
    rows.emplace_back(row, row + vocab_size);
  }
  return rows;
}

void ModelRunner::RunWithoutLogits(const std::vector<Slice>& slices) {
  Batch batch = MakeBatch(slices);
  batch.logits_rows.clear();
  model_.Forward(batch, cache_);
}

std::vector<float> ModelRunner::Feed(int sequence, std::span<const TokenId> tokens, int64_t chunk) {
  std::vector<float> logits;
  while (!tokens.empty()) {
    const auto piece = tokens.first(std::min(tokens.size(), static_cast<size_t>(chunk)));
    logits =
        Run({{.sequence = sequence, .tokens = {piece.begin(), piece.end()}, .are_of_prompt = true}})
            .front();
    tokens = tokens.subspan(piece.size());
  }
  return logits;
}

TokenId Greedy(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double Distance(const std::vector<float>& got, const std::vector<float>& expected) {
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{got[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / norm);
}

}  // namespace quire
