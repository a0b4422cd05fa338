// Changes the files of a small model at random, thousands of times with a fixed seed, and loads the
// result. For any bytes, loading ends with a model or with one line. It allocates no memory for
// sizes that merely stand in a file. AddressSanitizer makes the test worth most.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/model/model_config.h"
#include "kernels/reference/reference_backend.h"
#include "tests/worker/model/model_dir.h"
#include "worker/model/model.h"

namespace {
std::atomic<size_t> largest_allocation{0};

void* CountedAllocation(size_t bytes) {
  size_t seen = largest_allocation.load(std::memory_order_relaxed);
  while (bytes > seen && !largest_allocation.compare_exchange_weak(seen, bytes)) {
  }
  void* memory = std::malloc(bytes);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}
}  // namespace

void* operator new(size_t bytes) { return CountedAllocation(bytes); }
void* operator new[](size_t bytes) { return CountedAllocation(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace quire {
namespace {

using testing::AnyOf;
using testing::StartsWith;

constexpr uint64_t kSeed = 20240611;

// Hostile numbers and pieces of JSON.
constexpr const char* kPieces[] = {"0",
                                   "-1",
                                   "1e9",
                                   "2147483647",
                                   "2147483648",
                                   "4294967296",
                                   "9223372036854775807",
                                   "18446744073709551615",
                                   "1e400",
                                   "0.5",
                                   "null",
                                   "true",
                                   "\"\"",
                                   "[]",
                                   "{}",
                                   "[[",
                                   "{\"a\":",
                                   "\\u0000",
                                   "\xFF",
                                   "\"",
                                   ",",
                                   "\"F64\"",
                                   "\"BOOL\""};

class Mutator {
 public:
  Mutator() : random_(kSeed) {}

  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }

  // One to four changes of bytes in [0, limit).
  void Mutate(std::string& text, size_t limit) {
    for (size_t left = 1 + Below(4); left > 0; --left) {
      const size_t at = Below(std::max<size_t>(1, std::min(limit, text.size())));
      MutateAt(text, at);
    }
  }

 private:
  void MutateAt(std::string& text, size_t at) {
    const std::string piece = kPieces[Below(std::size(kPieces))];
    switch (Below(6)) {
      case 0:
        if (!text.empty()) {
          text[at] = static_cast<char>(random_());
        }
        break;
      case 1:
        text.erase(at, 1 + Below(16));
        break;
      case 2:
        text.insert(at, piece);
        break;
      case 3:
        text.insert(at, text.substr(Below(text.size() + 1), Below(64)));
        break;
      case 4:
        ReplaceNumber(text, at, piece);
        break;
      default:
        if (Below(8) == 0) {
          text.resize(at);
        }
    }
  }

  // Replaces the next number after `at` by the piece.
  static void ReplaceNumber(std::string& text, size_t at, const std::string& piece) {
    const size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) {
      return;
    }
    const size_t end = text.find_first_not_of("0123456789", begin);
    text.replace(begin, (end == std::string::npos ? text.size() : end) - begin, piece);
  }

  std::mt19937_64 random_;
};

// Loads the directory. Returns whether that succeeded; an error must be one line.
bool LoadAndExpectOneLine(const ModelDir& dir, KernelBackend& backend) {
  auto model = LoadModel(dir.path(), backend, nullptr);
  if (model.ok()) {
    return true;
  }
  const std::string message(model.status().message());
  EXPECT_THAT(message, AnyOf(StartsWith("load: "), StartsWith("config.json: ")));
  for (char c : message) {
    EXPECT_TRUE(c >= 0x20 && c <= 0x7e) << message;
  }
  return false;
}

TEST(ModelMutationTest, SpoiltHeadersNeverCrashAndNeverTakeMuchMemory) {
  ModelDir dir;
  dir.WriteAll();
  const std::string file = dir.Safetensors();
  const size_t header_end = file.size() - dir.Data().size();
  auto backend = CreateReferenceBackend();
  Mutator mutator;
  largest_allocation = 0;

  int refused = 0;
  for (int i = 0; i < 6000; ++i) {
    std::string bytes = file;
    mutator.Mutate(bytes, header_end);
    // Half of the time the length is made to fit again, so that the fault lies inside the header.
    if (mutator.Below(2) == 0 && bytes.size() > 8 + dir.Data().size()) {
      bytes =
          ModelDir::Safetensors(bytes.substr(8, bytes.size() - 8 - dir.Data().size()), dir.Data());
    }
    dir.WriteFile("model.safetensors", bytes);
    refused += LoadAndExpectOneLine(dir, *backend) ? 0 : 1;
  }

  EXPECT_GT(refused, 5000);
  EXPECT_LT(largest_allocation.load(), 4 * file.size());
}

TEST(ModelMutationTest, SpoiltConfigurationsNeverCrashAndNeverTakeMuchMemory) {
  ModelDir dir;
  dir.config["rope_scaling"] = {{"rope_type", "llama3"},
                                {"factor", 8.0},
                                {"low_freq_factor", 1.0},
                                {"high_freq_factor", 4.0},
                                {"original_max_position_embeddings", 16}};
  dir.config["head_dim"] = 4;
  dir.config["eos_token_id"] = {1, 2};
  dir.WriteAll();
  const std::string config = dir.config.dump();
  auto backend = CreateReferenceBackend();
  Mutator mutator;
  largest_allocation = 0;

  int refused = 0;
  for (int i = 0; i < 6000; ++i) {
    std::string text = config;
    mutator.Mutate(text, text.size());
    dir.WriteFile("config.json", text);
    refused += LoadAndExpectOneLine(dir, *backend) ? 0 : 1;
  }

  EXPECT_GT(refused, 3000);
  // Describing 1024 layers, the most that a configuration may have, takes some megabytes.
  EXPECT_LT(largest_allocation.load(), size_t{4} << 20);
}

TEST(ModelMutationTest, SpoiltBloomConfigurationsNeverCrash) {
  ModelDir dir;
  dir.BecomeBloom();
  dir.config["hidden_size"] = 8;
  dir.config["apply_residual_connection_post_layernorm"] = false;
  dir.config["layer_norm_epsilon"] = 1e-5;
  dir.config["eos_token_id"] = 2;
  dir.WriteAll();
  const std::string config = dir.config.dump();
  auto backend = CreateReferenceBackend();
  Mutator mutator;

  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = config;
    mutator.Mutate(text, text.size());
    dir.WriteFile("config.json", text);
    refused += LoadAndExpectOneLine(dir, *backend) ? 0 : 1;
  }

  EXPECT_GT(refused, 1500);
}

TEST(ModelMutationTest, SpoiltIndexesNeverCrashAndNeverTakeMuchMemory) {
  ModelDir dir;
  const std::string index = dir.WriteShards().dump();
  auto backend = CreateReferenceBackend();
  Mutator mutator;
  largest_allocation = 0;

  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = index;
    mutator.Mutate(text, text.size());
    dir.WriteFile("model.safetensors.index.json", text);
    refused += LoadAndExpectOneLine(dir, *backend) ? 0 : 1;
  }

  EXPECT_GT(refused, 2000);
  EXPECT_LT(largest_allocation.load(), size_t{64} << 10);
}

}  // namespace
}  // namespace quire
