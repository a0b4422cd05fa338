// Makes a model from a model directory, a GGUF file or a seed.
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/model/rank_share.h"
#include "worker/model/alibi.h"
#include "worker/model/decoded_tensors.h"
#include "worker/model/decoder_model.h"
#include "worker/model/kv_cache_scales.h"
#include "worker/model/model.h"
#include "worker/model/quantized_matrices.h"
#include "worker/model/quantized_tensors.h"
#include "worker/model/tensor_source.h"
#include "worker/model/weight_file_check.h"
#include "worker/model/weight_files.h"
#include "worker/model/weight_layout.h"
#include "worker/model/weight_loader.h"

namespace quire {
namespace {

// Returns the names of the tensors of which this rank holds the same part as the previous rank.
// Only the first rank with a part counts it in weights_sum, so this rank leaves these tensors out.
std::set<std::string> TensorsCountedByRankBefore(const RankShare& share,
                                                 const ModelConfig& config,
                                                 const WeightLayout& whole) {
  std::set<std::string> names;
  if (share.rank == 0) {
    return names;
  }
  // ShareOf cannot fail here: it succeeded for this rank of the same group.
  const absl::StatusOr<RankShare> before =
      ShareOf(config, {.rank = share.rank - 1, .size = share.size});
  const std::vector<TensorGroup> theirs = TensorGroups(SliceFor(*before, config, whole));
  const std::vector<TensorGroup> ours = TensorGroups(SliceFor(share, config, whole));
  for (size_t group = 0; group < ours.size(); ++group) {
    for (size_t i = 0; i < ours[group].size(); ++i) {
      const TensorShape& tensor = ours[group][i];
      if (tensor.held_rows == theirs[group][i].held_rows &&
          tensor.held_cols == theirs[group][i].held_cols) {
        names.insert(tensor.name);
      }
    }
  }
  return names;
}

// Logs the number and size of the model's files, and which quantized tensors are decoded. REQUIRES:
// `admit` has accepted the weights, so that a refusal logs only its error.
void LogFound(const WeightFiles& files,
              const TensorsToDecode& decoded,
              const QuantizedMatrices& quantized) {
  int64_t bytes = 0;
  for (const RegularFile* file : files.files()) {
    bytes += file->bytes();
  }
  LogInfo("model files found",
          {{"files", absl::StrCat(files.files().size())},
           {"tensors", absl::StrCat(files.tensors().size())},
           {"bytes", absl::StrCat(bytes)}});
  if (!decoded.names.empty()) {
    LogInfo("quantized weights are decoded to bfloat16, because this device cannot multiply them",
            {{"formats", absl::StrJoin(decoded.formats, " ")},
             {"tensors", absl::StrCat(decoded.names.size())},
             {"bytes", absl::StrCat(decoded.held_bytes)}});
  }
  if (!quantized.empty()) {
    LogInfo("quantized matrices are decoded to bfloat16",
            {{"tensors", absl::StrCat(quantized.num_matrices())},
             {"bytes_in_files", absl::StrCat(quantized.file_bytes())},
             {"bytes_of_all_ranks", absl::StrCat(quantized.decoded_bytes())}});
  }
}

// `layout`: this rank's part. `scales` has one entry per layer, or is empty: all scales are then 1.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(ModelConfig config,
                                                 const RankShare& share,
                                                 const WeightLayout& layout,
                                                 const TensorSource& tensors,
                                                 const std::vector<KvCacheScales>& scales,
                                                 KernelBackend& backend,
                                                 const LoadProgressFn& progress,
                                                 const AdmitWeightsFn& admit) {
  if (admit) {
    QUIRE_RETURN_IF_ERROR(admit(config, share, LoadedBytes(layout, tensors, backend)));
  }
  QUIRE_ASSIGN_OR_RETURN(DecoderWeights weights, LoadWeights(layout, tensors, backend, progress));
  for (size_t layer = 0; layer < scales.size(); ++layer) {
    weights.layers[layer].kv_cache_scales = scales[layer];
  }
  if (config.alibi) {
    const std::vector<float> slopes = AlibiSlopes(config.num_heads);
    QUIRE_RETURN_IF_ERROR(weights.alibi_slopes.Assign<float>(
        backend,
        std::span(slopes).subspan(static_cast<size_t>(share.heads.begin),
                                  static_cast<size_t>(share.heads.count))));
  }
  return std::make_unique<DecoderModel>(std::move(config), share, std::move(weights), backend);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& model_path,
                                                 KernelBackend& backend,
                                                 const LoadProgressFn& progress,
                                                 RankPlace place,
                                                 const AdmitWeightsFn& admit) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model_path));
  QUIRE_ASSIGN_OR_RETURN(const RankShare share, ShareOf(config, place));
  QUIRE_RETURN_IF_ERROR(backend.PrepareFor(config, share));
  QUIRE_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::Open(model_path));
  QUIRE_ASSIGN_OR_RETURN(WeightLayout whole, CheckWeightFiles(config, files));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<KvCacheScales> scales, ReadKvCacheScales(whole, files));
  QUIRE_ASSIGN_OR_RETURN(const QuantizedMatrices quantized,
                         QuantizedMatrices::Open(config.quantization, whole, files));
  const std::set<std::string> not_counted = TensorsCountedByRankBefore(share, config, whole);
  const FileTensors stored(files, not_counted);
  const QuantizedTensors plain(stored, quantized, not_counted);
  const WeightLayout layout = SliceFor(share, config, std::move(whole));
  TensorsToDecode decoded;  // empty for a directory: safetensors has no quantized WeightFormat
  if (files.is_gguf()) {
    QUIRE_ASSIGN_OR_RETURN(decoded, FindTensorsToDecode(layout, share.size, files, backend));
  }
  const DecodedTensors tensors(plain, decoded);
  const AdmitWeightsFn admit_and_tell = [&](const auto&... of_weights) {
    absl::Status status = admit ? admit(of_weights...) : absl::OkStatus();
    if (status.ok()) {
      LogFound(files, decoded, quantized);
    }
    return status;
  };
  return MakeModel(
      std::move(config), share, layout, tensors, scales, backend, progress, admit_and_tell);
}

absl::StatusOr<std::unique_ptr<Model>> MakeDummyModel(const std::string& model_dir,
                                                      uint64_t seed,
                                                      KernelBackend& backend,
                                                      RankPlace place,
                                                      const AdmitWeightsFn& admit) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model_dir));
  QUIRE_ASSIGN_OR_RETURN(const RankShare share, ShareOf(config, place));
  QUIRE_RETURN_IF_ERROR(backend.PrepareFor(config, share));
  const WeightLayout layout =
      SliceFor(share, config, MakeWeightLayout(config, NamePrefixes(config).front()));
  const DummyTensors tensors(config.dtype == DType::kF16 ? DType::kF16 : DType::kBF16, seed);
  return MakeModel(std::move(config),
                   share,
                   layout,
                   tensors,
                   /*scales=*/{},
                   backend,
                   /*progress=*/nullptr,
                   admit);
}

}  // namespace quire
