#include "kernels/cuda/gemm_tuner.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <optional>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace {

// A short product is timed again with more runs, since other work on the device disturbs it more.
constexpr int kTimedRuns = 3;
constexpr int kMoreTimedRuns = 12;
constexpr float kShortMilliseconds = 0.1F;

// Makes a name fit into one column of the file: replaces tabs and line breaks by spaces.
std::string OneColumn(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
  return name.empty() ? "unknown" : name;
}

GemmAlgorithm ToCache(const cublasLtMatmulAlgo_t& algorithm) {
  return std::bit_cast<GemmAlgorithm>(algorithm);
}

cublasLtMatmulAlgo_t FromCache(const GemmAlgorithm& algorithm) {
  return std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
}

}  // namespace

RotatedWeight::RotatedWeight(const GemmArgs& args, Stream stream) : weight_(args.weight) {
  constexpr size_t kMostBytes = size_t{256} << 20;
  constexpr size_t kMostCopies = 64;
  constexpr size_t kAlignment = 256;
  const auto bytes = static_cast<size_t>(args.out_features * args.in_features * SizeOf(args.dtype));
  stride_bytes_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  num_copies_ = std::min(kMostBytes / stride_bytes_, kMostCopies);
  needs_copies_ = num_copies_ >= 2;
  while (num_copies_ >= 2 && Allocate(&copies_, num_copies_ * stride_bytes_) != 0) {
    num_copies_ /= 2;
    copies_ = nullptr;
  }
  if (num_copies_ < 2) {
    num_copies_ = 0;
  }
  for (size_t i = 0; i < num_copies_; ++i) {
    void* to = static_cast<std::byte*>(copies_) + i * stride_bytes_;
    if (CopyOnDevice(to, weight_, bytes, stream) != 0) {
      num_copies_ = i;
    }
  }
}

RotatedWeight::~RotatedWeight() { Free(copies_); }

const void* RotatedWeight::Next() {
  if (num_copies_ == 0) {
    return weight_;
  }
  return static_cast<std::byte*>(copies_) + next_++ % num_copies_ * stride_bytes_;
}

GemmTuner::GemmTuner(const GemmOptions& options)
    : path_(options.cache_path == nullptr || options.batch_invariant != 0 ? ""
                                                                          : options.cache_path),
      device_(OneColumn(options.device_name)),
      warn_(options.warn) {}

int GemmTuner::Open(uint64_t version) {
  version_ = version;
  if (!path_.empty() && LoadGemmCache(path_, &found_) == GemmCacheState::kUnreadable) {
    GiveUpFile("is not a file that this program wrote, or cannot be read");
  }
  return 0;
}

void GemmTuner::GiveUpFile(const std::string& why) {
  if (warn_ != nullptr) {
    warn_(
        ("the fastest algorithms for matrix products are not saved: " + path_ + " " + why).c_str());
  }
  path_.clear();
}

GemmKey GemmTuner::KeyOf(const GemmArgs& args) const {
  return {.device = device_,
          .version = version_,
          .rows = RowRange(args.rows),
          .out_features = args.out_features,
          .in_features = args.in_features,
          .has_bias = args.bias != nullptr,
          .dtype = args.dtype,
          .y_dtype = args.y_dtype};
}

int GemmTuner::Choose(const GemmArgs& args,
                      CublasLtProduct& product,
                      Stream stream,
                      cublasLtMatmulAlgo_t* algorithm,
                      bool* is_final) {
  *is_final = true;
  const GemmKey key = KeyOf(args);
  const std::optional<GemmAlgorithm> known = found_.Find(key);
  if (known.has_value() && product.Takes(FromCache(*known))) {
    *algorithm = FromCache(*known);
    return 0;
  }
  std::vector<cublasLtMatmulAlgo_t> candidates;
  int error = product.Candidates(/*split_k=*/true, &candidates);
  bool is_recording = false;
  error = error != 0 ? error : IsRecording(stream, &is_recording);
  if (error != 0) {
    return error;
  }
  *algorithm = candidates[0];
  if (is_recording) {
    *is_final = false;
    return 0;
  }
  RotatedWeight weight(args, stream);
  std::optional<float> best;
  for (const cublasLtMatmulAlgo_t& candidate : candidates) {
    float milliseconds = 0.0F;
    const int failed = Time(product, weight, candidate, stream, &milliseconds);
    error = best.has_value() ? 0 : failed;
    if (failed == 0 && (!best.has_value() || milliseconds < *best)) {
      best = milliseconds;
      *algorithm = candidate;
    }
  }
  if (error == 0) {
    found_.Insert(key, ToCache(*algorithm));
    if (weight.is_read_from_memory()) {
      Keep(key, ToCache(*algorithm));
    }
  }
  return error;
}

void GemmTuner::Keep(const GemmKey& key, const GemmAlgorithm& algorithm) {
  kept_.Insert(key, algorithm);
  if (path_.empty()) {
    return;
  }
  // Reads the file again, so that entries which other processes have added are kept.
  GemmCache all;
  if (LoadGemmCache(path_, &all) == GemmCacheState::kUnreadable) {
    GiveUpFile("was changed by another program");
    return;
  }
  all.Merge(kept_);
  if (!SaveGemmCache(path_, all)) {
    GiveUpFile("cannot be written");
  }
}

int GemmTuner::Time(CublasLtProduct& product,
                    RotatedWeight& weight,
                    const cublasLtMatmulAlgo_t& algorithm,
                    Stream stream,
                    float* milliseconds) {
  // The first run is not timed, because it loads the kernel.
  int error = product.MultiplyBy(weight.Next(), algorithm, stream);
  error =
      error != 0 ? error : TimeRuns(kTimedRuns, product, weight, algorithm, stream, milliseconds);
  if (error == 0 && *milliseconds < kShortMilliseconds) {
    error = TimeRuns(kMoreTimedRuns, product, weight, algorithm, stream, milliseconds);
  }
  return error;
}

int GemmTuner::TimeRuns(int num_runs,
                        CublasLtProduct& product,
                        RotatedWeight& weight,
                        const cublasLtMatmulAlgo_t& algorithm,
                        Stream stream,
                        float* milliseconds) {
  Event begin = nullptr;
  Event end = nullptr;
  int error = CreateTimedEvent(&begin);
  error = error != 0 ? error : CreateTimedEvent(&end);
  error = error != 0 ? error : RecordEvent(begin, stream);
  for (int run = 0; run < num_runs && error == 0; ++run) {
    error = product.MultiplyBy(weight.Next(), algorithm, stream);
  }
  error = error != 0 ? error : RecordEvent(end, stream);
  error = error != 0 ? error : Synchronize(stream);
  error = error != 0 ? error : ElapsedMilliseconds(begin, end, milliseconds);
  *milliseconds /= static_cast<float>(num_runs);
  for (Event event : {begin, end}) {
    if (event != nullptr) {
      DestroyEvent(event);
    }
  }
  return error;
}

}  // namespace quire::gpu
