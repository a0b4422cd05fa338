// Loading by a backend that packs while it reads. Errors and progress are reported as well as where
// tensors are read ahead (malformed_model_test). The golden models check that the weights are
// right.
#include "worker/model/weight_loader.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/worker/model/model_dir.h"
#include "worker/model/model.h"
#include "worker/model/tensor_source.h"
#include "worker/model/weight_file_check.h"
#include "worker/model/weight_files.h"

namespace quire {
namespace {

std::unique_ptr<KernelBackend> Cpu() {
  auto backend = CreateCpuBackend({.num_threads = 2, .isa = "portable"});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

// The error message if the files are cut to this many bytes after they were checked.
std::string MessageWhenCutTo(uintmax_t bytes) {
  ModelDir dir;
  dir.WriteAll();
  auto config = LoadModelConfig(dir.path());
  auto files = WeightFiles::Open(dir.path());
  auto layout = CheckWeightFiles(*config, *files);
  EXPECT_TRUE(layout.ok()) << layout.status();
  std::filesystem::resize_file(dir.path("model.safetensors"), bytes);
  const auto backend = Cpu();
  return std::string(
      LoadWeights(*layout, FileTensors(*files), *backend, nullptr).status().message());
}

TEST(WeightLoaderTest, FileThatShrinksWhileItIsPackedIsRefused) {
  ModelDir dir;
  dir.WriteAll();
  const uintmax_t whole = std::filesystem::file_size(dir.path("model.safetensors"));
  for (const uintmax_t missing : {uintmax_t{1}, whole / 4, whole / 2, whole}) {
    EXPECT_EQ(MessageWhenCutTo(whole - missing), "load: model.safetensors: shrank while being read")
        << missing;
  }
}

TEST(WeightLoaderTest, ProgressOfPackingEndsAtTheTotal) {
  ModelDir dir;
  dir.WriteAll();
  const auto backend = Cpu();
  std::vector<LoadProgress> seen;

  const auto model =
      LoadModel(dir.path(), *backend, [&seen](const LoadProgress& p) { seen.push_back(p); });

  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_GE(seen.size(), 8U);
  for (size_t i = 1; i < seen.size(); ++i) {
    EXPECT_GE(seen[i].bytes_done, seen[i - 1].bytes_done);
    EXPECT_GE(seen[i].tensors_done, seen[i - 1].tensors_done);
    EXPECT_EQ(seen[i].bytes_done == seen[i].bytes_total,
              seen[i].tensors_done == seen[i].tensors_total);
  }
  EXPECT_EQ(seen.back().tensors_done, 12);
  EXPECT_EQ(seen.back().bytes_done, 2912);
}

// Bytes that were reported while tensors_done tensors were done.
std::set<int64_t> BytesToldAt(int64_t tensors_done, const std::vector<LoadProgress>& seen) {
  std::set<int64_t> bytes;
  for (const LoadProgress& progress : seen) {
    if (progress.tensors_done == tensors_done) {
      bytes.insert(progress.bytes_done);
    }
  }
  return bytes;
}

TEST(WeightLoaderTest, ProgressGoesOnWithinAMatrix) {
  constexpr int64_t kRows = 400;
  ModelDir dir;
  dir.config["vocab_size"] = kRows;
  dir.Find("lm_head.weight").shape[0] = kRows;
  dir.Find("model.embed_tokens.weight").shape[0] = kRows;
  dir.WriteAll();
  auto backend = CreateCpuBackend({.num_threads = 1, .isa = "portable"});
  ASSERT_TRUE(backend.ok()) << backend.status();
  std::vector<LoadProgress> seen;

  const auto model =
      LoadModel(dir.path(), **backend, [&seen](const LoadProgress& p) { seen.push_back(p); });

  ASSERT_TRUE(model.ok()) << model.status();
  // The output matrix is the last tensor of 12. A panel has eight rows here, of eight floats.
  EXPECT_EQ(BytesToldAt(11, seen).size(), static_cast<size_t>(kRows / 8));
}

// Makes every size odd: heads of 10, no full panel, segments of 5 columns and of 9.
void BecomeOdd(ModelDir& dir) {
  dir.config["hidden_size"] = 40;
  dir.config["num_attention_heads"] = 4;
  dir.config["intermediate_size"] = 72;
  const std::map<int64_t, int64_t> sizes = {{4, 10}, {8, 40}, {16, 72}};
  for (TensorSpec& tensor : dir.tensors) {
    for (int64_t& size : tensor.shape) {
      size = sizes.at(size);
    }
    tensor.dtype = "BF16";
  }
  dir.config["vocab_size"] = 40;
}

TEST(WeightLoaderTest, MemoryThatWasPlannedIsThatOfPackedWeights) {
  for (const char* isa : {"amx", "avx512bf16", "avx512", "avx2", "portable"}) {
    for (const bool is_tied : {false, true}) {
      ModelDir dir;
      BecomeOdd(dir);
      dir.config["tie_word_embeddings"] = is_tied;
      if (is_tied) {
        dir.Remove("lm_head.weight");
      }
      dir.WriteAll();
      const auto backend = CreateCpuBackend({.num_threads = 2, .isa = isa});
      if (!backend.ok()) {
        continue;  // this machine lacks the instructions
      }
      int64_t planned_bytes = 0;

      const auto model = LoadModel(
          dir.path(), **backend, nullptr, {}, [&](const auto&, const auto&, int64_t bytes) {
            planned_bytes = bytes;
            return absl::OkStatus();
          });

      ASSERT_TRUE(model.ok()) << model.status();
      constexpr int64_t kReadAheadBytes = int64_t{3} * 40 * 2;  // norms, as they are in the file
      EXPECT_EQ(planned_bytes, (*model)->weight_bytes() + kReadAheadBytes) << isa << is_tied;
    }
  }
}

// Bytes of weights of the odd model, with a tied output matrix or with its own.
int64_t WeightBytes(bool is_tied, KernelBackend& backend) {
  ModelDir dir;
  BecomeOdd(dir);
  dir.config["tie_word_embeddings"] = is_tied;
  if (is_tied) {
    dir.Remove("lm_head.weight");
  }
  dir.WriteAll();
  const auto model = LoadModel(dir.path(), backend, nullptr);
  EXPECT_TRUE(model.ok()) << model.status();
  int64_t bytes = 0;
  for (const auto& memory : (*model)->weights_memory()) {
    bytes += std::ssize(memory);
  }
  EXPECT_EQ((*model)->weight_bytes(), bytes);
  return bytes;
}

TEST(WeightLoaderTest, ATiedTableIsKeptOnlyAsTheOutputMatrix) {
  constexpr int64_t kTableBytes = int64_t{40} * 40 * 2;
  const auto backend = Cpu();

  EXPECT_EQ(WeightBytes(/*is_tied=*/false, *backend) - WeightBytes(/*is_tied=*/true, *backend),
            kTableBytes);
}

TEST(WeightLoaderTest, SumOfPackedWeightsIsThatOfThoseReadAhead) {
  ModelDir dir;
  dir.WriteAll();
  const auto cpu = Cpu();
  const auto reference = CreateReferenceBackend();

  const auto packed = LoadModel(dir.path(), *cpu, nullptr);
  const auto read_ahead = LoadModel(dir.path(), *reference, nullptr);

  ASSERT_TRUE(packed.ok() && read_ahead.ok());
  EXPECT_NE((*packed)->weights_sum(), 0U);
  EXPECT_EQ((*packed)->weights_sum(), (*read_ahead)->weights_sum());
}

}  // namespace
}  // namespace quire
