// AttentionBatch is one batch of sequences over a large pool of KV blocks, in several sets. All
// sets have the same lengths, but each has other blocks or another layer. Benchmarks go round
// through the sets; checks of bits use one set.
//
// Shapes: num_tokens is the sum of the query lengths. Each set has a separate output.
#ifndef QUIRE_TESTS_GPU_BENCH_ATTENTION_H_
#define QUIRE_TESTS_GPU_BENCH_ATTENTION_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/bench.h"
#include "tests/gpu/bench_kernels.h"

namespace quire::gpu {

struct AttentionShape {
  int32_t num_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t block_size_tokens = 16;
  DType dtype = DType::kBF16;
  DType cache_dtype = DType::kBF16;

  std::string Name() const;
  void AddParams(Figure& figure) const;
};

// The size of a KvPool. By default it has room for 128 sequences of 32768 tokens of one layer with
// 32 KV heads.
struct PoolSize {
  double share_of_free = 0.5;
  double max_bytes = 72e9;
};

// How a model's layers share a pool.
struct PoolLayers {
  int32_t num_layers = 0;    // 0: several, or one if memory is short
  bool layer_major = false;  // each layer has a separate region, not a part of each block
};

// A pool with room for the blocks of all cases, filled with random numbers of one type at a time.
class KvPool {
 public:
  explicit KvPool(Bench& bench, const PoolSize& size = {});
  // Uses memory that was allocated elsewhere. REQUIRES: the memory outlives the pool.
  KvPool(Bench& bench, void* data, int64_t bytes);

  void FillFor(DType dtype);
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  static int64_t SizeFor(const Bench& bench, const PoolSize& size);

  Bench& bench_;
  Buffer memory_;
  void* data_;
  int64_t bytes_;
  std::optional<DType> filled_with_;
};

struct SequenceLengths {
  int32_t query_len = 1;
  int32_t seq_len = 1;  // tokens of the context, the queries included
};

class AttentionBatch {
 public:
  // Returns nullopt if the pool is too small. If layers.num_layers is given, there are at least as
  // many sets, and set i < num_layers uses layer i.
  static std::optional<AttentionBatch> Make(Bench& bench,
                                            KvPool& pool,
                                            const AttentionShape& shape,
                                            const std::vector<SequenceLengths>& sequences,
                                            const PoolLayers& layers = {});

  const AttentionShape& shape() const { return shape_; }
  const std::vector<SequenceLengths>& sequences() const { return sequences_; }
  int num_sets() const { return num_sets_; }
  int32_t num_tokens() const { return num_tokens_; }
  PagedAttentionParams Args(int set) const;
  // Block tables of the first set: [num_seqs, max_blocks_per_seq].
  std::vector<BlockId> BlockTables() const { return block_tables_.ToHost<BlockId>(); }
  Buffer& out() { return out_; }
  const Buffer& out() const { return out_; }
  int64_t out_bytes_a_set() const;

  // Returns the least possible work: keys, values and queries are read once, outputs are written
  // once, and queries are multiplied with keys and weights with values.
  Work LeastWork() const;
  // Returns the error of some rows of the first and the last set, compared with plain loops on the
  // device. has_plain_rows: whether the kernel read the pool's rows as plain instead of swizzled
  // rows.
  double ProbedError(Bench& bench, bool has_plain_rows = false) const;
  bool IsFinite(Bench& bench) const;

 private:
  AttentionBatch(Bench& bench,
                 KvPool& pool,
                 const AttentionShape& shape,
                 const std::vector<SequenceLengths>& sequences,
                 const PoolLayers& layers);
  int64_t BlocksOf(const SequenceLengths& sequence) const;
  void MakeTables(int num_tables);
  std::vector<AttentionProbe> Probes() const;

  AttentionShape shape_;
  std::vector<SequenceLengths> sequences_;
  PoolLayers layers_;
  KvCacheView cache_;  // of layer 0 if the pool is layer-major
  int32_t num_tokens_ = 0;
  int32_t max_blocks_per_seq_ = 0;
  int64_t blocks_a_table_ = 0;
  int num_sets_ = 1;
  Buffer q_;
  Buffer out_;
  Buffer query_start_;
  Buffer seq_lens_;
  Buffer block_tables_;
};

// ---- Kernels to choose from: one line for each kernel -------------------------------------------

// A kernel and its name in flags. Figures of a table's first kernel have the name of the case
// alone.
struct DecodeChoice {
  const char* name;
  DecodeKernel kernel;
};
inline constexpr DecodeChoice kDecodeChoices[] = {{"splits", DecodeKernel::kSplits},
                                                  {"lines", DecodeKernel::kLines}};
struct PrefillChoice {
  const char* name;
  PrefillKernel kernel;
};
inline constexpr PrefillChoice kPrefillChoices[] = {{"mma", PrefillKernel::kMma},
                                                    {"wgmma", PrefillKernel::kWgmma},
                                                    {"persistent", PrefillKernel::kPersistent}};

// Returns whether the kernel is among the names of a flag. An empty list chooses all kernels.
template <typename Choice>
bool IsChosen(const std::vector<std::string>& names, const Choice& choice) {
  return names.empty() || std::find(names.begin(), names.end(), choice.name) != names.end();
}

template <typename Choice, size_t kCount>
std::string NameWith(const std::string& name, const Choice (&table)[kCount], const Choice& choice) {
  return choice.kernel == table[0].kernel ? name : name + ", " + choice.name;
}

// ---- Decode -------------------------------------------------------------------------------------

struct DecodeOptions {
  DecodeKernel kernel = DecodeKernel::kSplits;
  int32_t split_tokens = 0;  // 0: SplitTokensFor
  int32_t num_ctas = 0;      // 0: the device's grid times ctas_over_grid
  double ctas_over_grid = 1.0;
  int32_t max_query_tokens = 1;
  int32_t only_sequence = -1;  // the sequence to decode; -1: all
};

// A plan for a batch, and the memory of its partial results.
class DecodeScratch {
 public:
  // Makes the memory and plans the splits. Returns nullopt if the kernel does not support the
  // batch.
  static std::optional<DecodeScratch> Make(Bench& bench,
                                           const AttentionBatch& batch,
                                           const DecodeOptions& options);

  // Makes a plan of decode by lines, or by splits if the device has no decode by lines.
  static DecodeScratch MakeFastest(Bench& bench, const AttentionBatch& batch);

  const DecodePlan& plan() const { return plan_; }

 private:
  DecodeScratch() : split_start_(0), partial_out_(0), partial_state_(0), arrivals_(0), index_(0) {}
  void AllocatePartials(const AttentionBatch& batch);

  DecodePlan plan_;
  Buffer split_start_;
  Buffer partial_out_;
  Buffer partial_state_;
  Buffer arrivals_;
  Buffer index_;
};

// Returns how many CTAs the device can run at once for the batch and the plan's kernel, or 0 if the
// kernel does not support them.
int32_t DecodeCtasFor(const AttentionBatch& batch, const DecodePlan& plan);
// Returns the length of a split that the backend chooses (kernels/gpu/decode_plans.cc).
int32_t SplitTokensFor(const AttentionShape& shape, DecodeKernel kernel);

// ---- Prefill ------------------------------------------------------------------------------------

struct PrefillOptions {
  PrefillKernel kernel = PrefillKernel::kFastest;
  int32_t only_sequence = -1;  // the sequence to compute; -1: all
  int32_t num_ctas = 0;        // of a persistent grid; 0: the device's
};

// The items of a batch. Those with the longest context come first.
class PrefillScratch {
 public:
  PrefillScratch(const AttentionBatch& batch, const PrefillOptions& options);

  const PrefillPlan& plan() const { return plan_; }

 private:
  Buffer items_;
  Buffer next_item_;
  PrefillPlan plan_;
};

// ---- Measuring ----------------------------------------------------------------------------------

// Kernels that compute the same batch and take turns in the measurement. Each adds a figure.
class AttentionInTurn {
 public:
  AttentionInTurn(Bench& bench, AttentionBatch& batch, std::string group, std::string name);

  // These functions add no kernel if it does not support the batch. prefix: put before the kernel's
  // name.
  void AddDecode(const DecodeChoice& choice, DecodeOptions options);
  void AddPrefill(const PrefillChoice& choice, const std::string& prefix = "");
  // Adds another project's kernel (peer_library.h), if the library has it.
  void AddPeer(int kind);

  // Measures, checks the outputs of each kernel and adds the figures. complete: adds the case's
  // params and work to a figure.
  void Measure(const std::function<void(Figure& figure)>& complete);

 private:
  struct Member {
    Figure figure;
    Bench::Call call;
    bool is_peer = false;
  };
  void Add(Figure figure, Bench::Call call, bool is_peer = false);
  void Check(Member& member);

  Bench& bench_;
  AttentionBatch& batch_;
  const std::string group_;
  const std::string name_;
  std::vector<Member> members_;
};

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_BENCH_ATTENTION_H_
