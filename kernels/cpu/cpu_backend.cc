#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/usable_cpus.h"
#include "kernels/api/host_backend.h"
#include "kernels/cpu/code_format.h"
#include "kernels/cpu/cpu_linear.h"
#include "kernels/cpu/huge_arena.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/packed_linear.h"
#include "kernels/cpu/quantized_linear.h"
#include "kernels/cpu/thread_team.h"

namespace quire {
namespace {

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(const KernelTable& table, const CpuBackendOptions& options)
      : table_(table),
        team_(NumThreads(options)),
        input_type_(options.input_type),
        quantization_(options.quantization) {}

  std::string name() const override {
    return std::string("cpu-") + table_.isa + (input_type_ == InputType::kF32 ? "-f32" : "");
  }

  KvCacheLayout LayoutFor(const KvCacheSpec& spec) const override {
    return WithScales(DimMajorKeys(spec));
  }

  int32_t full_step_tokens() const override { return table_.full_step_tokens; }

  bool packs_while_reading() const override { return true; }
  bool CanMultiply(WeightFormat format) const override {
    return !IsQuantized(format) || CodeFormatOf(format).bits != 0;
  }
  int64_t PackedBytes(const LinearSource& source) const override {
    const std::optional<int64_t> bytes =
        IsPackedQuantized(source)
            ? CpuQuantizedLinear::BytesFor(source, table_.quantized->lanes, RoundedFormat(source))
            : CpuPackedLinear::BytesFor(source, table_.panel);
    return bytes ? static_cast<int64_t>(HugeArena::TakenBytes(static_cast<size_t>(*bytes)))
                 : std::numeric_limits<int64_t>::max();
  }
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) override {
    if (IsPackedQuantized(source)) {
      return CpuQuantizedLinear::Pack(
          source, table_.quantized->lanes, arena_, team_, RoundedFormat(source));
    }
    return CpuPackedLinear::Pack(source, table_.panel, arena_, team_);
  }

  void Embed(const EmbeddingParams& params) override { table_.embed(params, team_); }
  void Norm(const NormParams& params) override { table_.norm(params, team_); }
  void Linear(const LinearParams& params) override {
    // A step that completes no prompt and decodes nothing has zero rows of logits.
    if (params.num_tokens == 0) {
      return;
    }
    if (IsQuantizedLinear(params.weight)) {
      QuantizedLinear(params, input_type_, *table_.quantized, team_);
    } else {
      table_.linear(params, team_);
    }
  }
  void Activate(const ActivationParams& params) override { table_.activate(params, team_); }
  void Mlp(const MlpParams& params) override {
    if (table_.mlp == nullptr || IsQuantizedLinear(params.in) || IsQuantizedLinear(params.out) ||
        !table_.mlp(params, team_)) {
      KernelBackend::Mlp(params);
    }
  }
  void PrepareAttention(const PrepareAttentionParams& params) override {
    table_.prepare_attention(params, team_);
  }
  void PagedAttention(const PagedAttentionParams& params) override {
    QUIRE_CHECK(HasPlainSoftmax(params));
    table_.paged_attention(params, team_);
  }
  void CopyBlocks(const CopyBlocksParams& params) override { table_.copy_blocks(params, team_); }
  void Sample(const SampleParams& params) override { table_.sample(params, team_); }
  uint64_t progress() const override { return team_.progress(); }

 protected:
  // Copies on several threads, because one thread does not saturate the memory bus.
  void Transfer(const BlockTransferParams& params) override {
    team_.ParallelFor(
        static_cast<int64_t>(params.blocks.size()),
        [&](int64_t task, int /*thread*/) { CopyBlock(params, static_cast<size_t>(task)); });
  }

 private:
  bool IsPackedQuantized(const LinearSource& source) const {
    return !source.parts.empty() &&
           (quantization_ != CpuQuantization::kNone || IsQuantized(source.parts.front().format));
  }
  // Returns the format to which unquantized weights of the source are rounded.
  WeightFormat RoundedFormat(const LinearSource& source) const {
    return quantization_ == CpuQuantization::kInt4 && source.is_quantizable ? WeightFormat::kQ4_0
                                                                            : WeightFormat::kQ8_0;
  }
  static bool IsQuantizedLinear(const PackedLinear* weight) {
    return static_cast<const CpuLinear*>(weight)->is_quantized();
  }

  const KernelTable& table_;
  ThreadTeam team_;
  const InputType input_type_;
  const CpuQuantization quantization_;
  HugeArena arena_;
};

absl::StatusOr<const KernelTable*> ChooseTable(std::string_view isa) {
  std::string known;
  for (const KernelTable& table : KernelTables()) {
    if (isa.empty() && IsSupported(table)) {
      return &table;
    }
    if (isa == table.isa) {
      if (!IsSupported(table)) {
        return Error(absl::StatusCode::kFailedPrecondition,
                     "CPU_ISA",
                     "isa: this machine lacks the instructions of " + std::string(isa));
      }
      return &table;
    }
    known += known.empty() ? table.isa : std::string(", ") + table.isa;
  }
  return InvalidArgument("CPU_ISA",
                         "isa: must be one of " + known + " (got " + std::string(isa) + ")");
}

}  // namespace

int NumThreads(const CpuBackendOptions& options) {
  return options.num_threads > 0
             ? options.num_threads
             : std::clamp(
                   UsableCpus() / std::max(1, options.num_sharers), 1, ThreadTeam::kMaxThreads);
}

absl::StatusOr<std::unique_ptr<KernelBackend>> CreateCpuBackend(const CpuBackendOptions& options) {
  if (options.num_threads < 0 || options.num_threads > ThreadTeam::kMaxThreads) {
    return InvalidArgument("CPU_THREADS",
                           "num_threads: out of range (got " + std::to_string(options.num_threads) +
                               ", limit " + std::to_string(ThreadTeam::kMaxThreads) + ")");
  }
  QUIRE_ASSIGN_OR_RETURN(const KernelTable* table, ChooseTable(options.isa));
  return std::unique_ptr<KernelBackend>(std::make_unique<CpuBackend>(*table, options));
}

}  // namespace quire
