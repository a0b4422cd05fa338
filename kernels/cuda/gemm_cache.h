// GemmCache remembers which algorithm was the fastest for a product, on which device and with which
// version of the library; as text it outlives the process. Nothing of it depends on CUDA.
//
// As text: the line "quire-gemm-cache 1", then a line an algorithm, its columns apart by one tab
// each: version of the library, rows, out_features, in_features, bias (0 or 1), dtype, y_dtype, the
// algorithm as 128 hexadecimal digits, and the device's name. An algorithm means nothing to another
// version of the library; lines of other versions and devices are kept, for the workers they belong
// to.
//
// Thread safety: one caller at a time; the file may be shared by processes, see SaveGemmCache.
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

// Products of so many rows or fewer share an algorithm, down to the range below: 1 to 8 rows have
// one each, then the ranges are of 8, 32, 128 and 512 rows.
int64_t RowRange(int64_t rows);

struct GemmKey {
  std::string device;    // without tabs and line breaks
  uint64_t version = 0;  // of the library
  int64_t rows = 0;      // a RowRange
  int64_t out_features = 0;
  int64_t in_features = 0;
  bool has_bias = false;
  DType dtype = DType::kBF16;
  DType y_dtype = DType::kBF16;

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 sees a null pointer in it
  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;
};

// The library's own description, opaque.
using GemmAlgorithm = std::array<uint64_t, 8>;

class GemmCache {
 public:
  std::optional<GemmAlgorithm> Find(const GemmKey& key) const;
  void Insert(const GemmKey& key, const GemmAlgorithm& algorithm) { entries_[key] = algorithm; }
  // Takes what the other has; for products that both know, its algorithm.
  void Merge(const GemmCache& other);
  size_t size() const { return entries_.size(); }

  std::string Format() const;
  // None when a line is not as Format writes it: a file that somebody else wrote, or half of one.
  static std::optional<GemmCache> Parse(std::string_view text);

 private:
  std::map<GemmKey, GemmAlgorithm> entries_;
};

enum class GemmCacheState : uint8_t { kRead, kMissing, kUnreadable };

// kUnreadable: there is a file, but it cannot be read, is larger than 16 MiB or does not parse.
GemmCacheState LoadGemmCache(const std::string& path, GemmCache* cache);
// Writes another file and renames it, so that whoever reads sees all of it or all of what was there
// before; makes the folders that are missing. Of two processes that write at once, one wins. False
// when it cannot be written.
bool SaveGemmCache(const std::string& path, const GemmCache& cache);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GEMM_CACHE_H_
