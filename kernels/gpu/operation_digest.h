// OperationDigest names a sequence of operations: two sequences whose parameters differ in any
// field have different digests, except for a chance of 2^-64. So a graph that was recorded under a
// digest computes what the operations would compute.
//
// Every field of every struct of parameters is named in operation_digest.cc by a structured
// binding. After a field is added to a struct, that file does not compile until it names the field.
//
// Thread safety: one caller at a time.
// Cost:          a few nanoseconds a field.
#ifndef QUIRE_KERNELS_GPU_OPERATION_DIGEST_H_
#define QUIRE_KERNELS_GPU_OPERATION_DIGEST_H_

#include <bit>
#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

#include "common/base/fold_hash.h"
#include "kernels/api/attention.h"
#include "kernels/api/collective.h"
#include "kernels/api/dense.h"
#include "kernels/api/kv_cache_layout.h"
#include "kernels/gpu/gpu_linear.h"

namespace quire {

class OperationDigest {
 public:
  void Add(const EmbeddingParams& params);
  void Add(const NormParams& params);
  // Adds the weight's addresses on the device, not its contents.
  void Add(const LinearParams& params);
  void Add(const ActivationParams& params);
  void Add(const PrepareAttentionParams& params);
  void Add(const PagedAttentionParams& params);
  void Add(const AllReduceParams& params);
  void Add(const GatherParams& params);

  // Adds a number that operations depend on, but that is not among their parameters.
  void AddInt(int64_t number) { hash_.AddInt(number); }

  uint64_t value() const { return hash_.value(); }

 private:
  // Tells the operations apart.
  enum class Kind : uint8_t {
    kEmbed,
    kNorm,
    kLinear,
    kActivate,
    kPrepareAttention,
    kPagedAttention,
    kAllReduce,
    kGather,
  };

  template <typename... Fields>
  void AddFields(const Fields&... fields) {
    (AddField(fields), ...);
  }
  template <typename T>
  requires std::integral<T> || std::is_enum_v<T>
  void AddField(T number) { hash_.AddInt(static_cast<int64_t>(number)); }
  void AddField(float number) { hash_.AddFloat(number); }
  void AddField(const void* address) { hash_.Add(std::bit_cast<uint64_t>(address)); }
  void AddField(const GpuLinear* linear);
  void AddField(const MatrixView& matrix);
  void AddField(const KvCacheView& cache);
  void AddField(const KvCacheLayout& layout);
  void AddField(std::span<const int64_t> numbers);

  FoldHash hash_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_OPERATION_DIGEST_H_
