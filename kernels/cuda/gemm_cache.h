// GemmCache maps a product, device and library version to the fastest algorithm. The map is saved
// as text for the next process. This code does not depend on CUDA.
//
// Format: the line "quire-gemm-cache 1", then one line per algorithm with tab-separated columns:
// library version, rows, out_features, in_features, bias (0 or 1), dtype, y_dtype, the algorithm as
// 128 hexadecimal digits, device name. An algorithm is valid for one library version only. A worker
// keeps the lines of other versions and devices, because other workers share the file.
//
// Thread safety: one caller at a time; processes may share the file, see SaveGemmCache.
#ifndef QUIRE_KERNELS_CUDA_GEMM_CACHE_H_
#define QUIRE_KERNELS_CUDA_GEMM_CACHE_H_

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/model/dtype.h"

namespace quire::gpu {

// Returns the largest row count of the range that contains `rows`. Products whose row counts are in
// one range share an algorithm. A range ends at every row count up to 8, at every multiple of 8 up
// to 64, of 32 up to 256, of 128 up to 1024, and of 512 above 1024.
int64_t RowRange(int64_t rows);

struct GemmKey {
  std::string device;    // without tabs and line breaks
  uint64_t version = 0;  // version of cuBLASLt
  int64_t rows = 0;      // a result of RowRange
  int64_t out_features = 0;
  int64_t in_features = 0;
  bool has_bias = false;
  DType dtype = DType::kBF16;
  DType y_dtype = DType::kBF16;

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 sees a null pointer in the operator
  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;
};

// The library's opaque description of an algorithm.
using GemmAlgorithm = std::array<uint64_t, 8>;

class GemmCache {
 public:
  std::optional<GemmAlgorithm> Find(const GemmKey& key) const;
  void Insert(const GemmKey& key, const GemmAlgorithm& algorithm) { entries_[key] = algorithm; }
  // Adds the entries of `other`. If both caches have a key, the algorithm of `other` wins.
  void Merge(const GemmCache& other);
  size_t size() const { return entries_.size(); }

  std::string Format() const;
  // Returns nullopt if a line is not as Format writes it, for example if the file is truncated.
  static std::optional<GemmCache> Parse(std::string_view text);

 private:
  std::map<GemmKey, GemmAlgorithm> entries_;
};

enum class GemmCacheState : uint8_t { kRead, kMissing, kUnreadable };

// Returns kUnreadable if the file cannot be read, is larger than 16 MiB or does not parse.
GemmCacheState LoadGemmCache(const std::string& path, GemmCache* cache);
// Writes a temporary file and renames it, so that readers see the whole old or the whole new file.
// Creates missing folders. If two processes write at once, the file of one remains. Returns false
// if the file cannot be written.
bool SaveGemmCache(const std::string& path, const GemmCache& cache);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GEMM_CACHE_H_
