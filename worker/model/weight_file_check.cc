#include "worker/model/weight_file_check.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/load_error.h"
#include "worker/model/kv_cache_scales.h"
#include "worker/model/quantized_matrices.h"

namespace quire {
namespace {

// Returns "F32, F16, Q4_0, ...".
std::string FormatNames() {
  std::string names;
  for (const WeightFormatInfo& info : kWeightFormats) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", ToAbsl(info.name));
  }
  return names;
}

// Compares the tensors in the files with the tensors that the layout lists.
class FileChecker {
 public:
  FileChecker(const WeightFiles& files, const QuantizedMatrices& quantized)
      : files_(files), quantized_(quantized) {
    Expect(quantized.names());
  }

  // Fails if a tensor is missing, has another shape than the layout's, or has an unsupported type.
  // In a directory, also fails if the types of a group's matrices differ. GGUF files mix types.
  absl::Status Check(const TensorGroup& group) {
    const TensorShape* first = nullptr;
    std::string first_type;
    for (const TensorShape& shape : group) {
      std::string type = "BF16";  // the type to which quantized matrices are decoded
      if (quantized_.Find(shape.name) == nullptr) {
        QUIRE_ASSIGN_OR_RETURN(const WeightRef weight, CheckTensor(shape));
        type = weight.tensor->type_name;
      }
      if (shape.rows == 0) {
        continue;
      }
      if (first != nullptr && !files_.is_gguf() && first_type != type) {
        return TensorError(FileOf(shape.name),
                           shape.name,
                           absl::StrCat("must have the dtype of ",
                                        first->name,
                                        " (got ",
                                        type,
                                        ", need ",
                                        first_type,
                                        ")"));
      }
      first = &shape;
      first_type = type;
    }
    return absl::OkStatus();
  }

  // Lets CheckExtras accept tensors with these names. Other code checks and reads them.
  void Expect(const std::vector<std::string>& names) { seen_.insert(names.begin(), names.end()); }

  // Fails if a tensor in the files was neither checked nor expected, unless IsHarmlessExtra or
  // IsLeftOut is true for it. Logs how many tensors are left out.
  absl::Status CheckExtras(const ModelConfig& config) const {
    int64_t num_left_out = 0;
    for (const auto& [name, weight] : files_.tensors()) {
      if (seen_.contains(name) || IsHarmlessExtra(config, name)) {
        continue;
      }
      if (!IsLeftOut(config, name)) {
        return TensorError(weight.file->name(), weight.tensor->name, "is not part of this model");
      }
      ++num_left_out;
    }
    if (num_left_out > 0) {
      LogInfo("only the language model is served; its files hold other parts too",
              {{"tensors_left_out", absl::StrCat(num_left_out)}});
    }
    return absl::OkStatus();
  }

 private:
  // Returns the name of the file with the tensor, or of all files together if the tensor is
  // missing.
  const std::string& FileOf(const std::string& tensor) const {
    const WeightRef weight = files_.Find(tensor);
    return weight.file == nullptr ? files_.name() : weight.file->name();
  }

  absl::StatusOr<WeightRef> CheckTensor(const TensorShape& wanted) {
    const std::string& name = wanted.name;
    const WeightRef weight = files_.Find(name);
    if (weight.file == nullptr) {
      return TensorError(files_.name(), files_.NameInFiles(name), "is missing");
    }
    const auto error = [&weight](const std::string& rule) {
      return TensorError(weight.file->name(), weight.tensor->name, rule);
    };
    const std::vector<int64_t> shape = wanted.rows == 0
                                           ? std::vector<int64_t>{wanted.cols}
                                           : std::vector<int64_t>{wanted.rows, wanted.cols};
    if (weight.tensor->shape != shape) {
      return error(absl::StrCat("has the wrong shape (got ",
                                ShapeToString(weight.tensor->shape),
                                files_.is_gguf() ? ", the metadata needs " : ", config.json needs ",
                                ShapeToString(shape),
                                ")"));
    }
    const std::optional<WeightFormat> format = weight.tensor->format;
    if (!format.has_value() || (wanted.rows == 0 && IsQuantized(*format))) {
      const bool can_be_quantized = files_.is_gguf() && wanted.rows > 0;
      return error(absl::StrCat("has an unsupported dtype (got ",
                                weight.tensor->type_name,
                                ", need ",
                                can_be_quantized ? FormatNames() : "F32, F16 or BF16",
                                ")"));
    }
    seen_.insert(name);
    return weight;
  }

  const WeightFiles& files_;
  const QuantizedMatrices& quantized_;
  std::set<std::string> seen_;
};

// Returns true if the files hold an output matrix with the type and shape of the embedding and
// other values. `untied`: the layout with an output matrix of its own. Compares some pieces of the
// two matrices, since reading both completely would double the time to load. A matrix that was
// trained separately differs in nearly every piece.
bool HasAnotherHead(const WeightFiles& files, const WeightLayout& untied) {
  constexpr int64_t kPieces = 64;
  constexpr int64_t kPieceBytes = 4096;
  const WeightRef head = files.Find(untied.lm_head.parts.front().name + ".weight");
  const WeightRef table = files.Find(untied.token_table.name + ".weight");
  if (head.file == nullptr || table.file == nullptr ||
      head.tensor->type_name != table.tensor->type_name ||
      head.tensor->shape != table.tensor->shape) {
    return false;
  }
  const int64_t bytes = head.tensor->bytes;
  std::vector<std::byte> head_bytes(static_cast<size_t>(std::min(kPieceBytes, bytes)));
  std::vector<std::byte> table_bytes(head_bytes.size());
  const int64_t last = bytes - static_cast<int64_t>(head_bytes.size());
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    const int64_t offset = last * piece / (kPieces - 1);
    if (!head.Read(offset, head_bytes).ok() || !table.Read(offset, table_bytes).ok()) {
      return false;
    }
    if (head_bytes != table_bytes) {
      return true;
    }
  }
  return false;
}

// Returns the layout with the first of NamePrefixes under which the files have a token table. If
// config.json ties the output matrix to the embedding, but the files hold a different output
// matrix, the files win, as in transformers 5: config.json of some image and text models claims a
// tie that the files do not have.
WeightLayout LayoutOf(const ModelConfig& config, const WeightFiles& files) {
  const std::vector<std::string> prefixes = NamePrefixes(config);
  const auto prefix = std::find_if(prefixes.begin(), prefixes.end(), [&](const std::string& some) {
    const std::string& table = MakeWeightLayout(config, some).token_table.name;
    return files.Find(table + ".weight").file != nullptr ||
           QuantizedMatrix::FindIn(files, table).file != nullptr;
  });
  const std::string& chosen = prefix == prefixes.end() ? prefixes.front() : *prefix;
  if (config.tie_word_embeddings) {
    ModelConfig untied_config = config;
    untied_config.tie_word_embeddings = false;
    WeightLayout untied = MakeWeightLayout(untied_config, chosen);
    if (HasAnotherHead(files, untied)) {
      LogWarning(
          "the output matrix differs from the embedding and is used, although config.json "
          "sets tie_word_embeddings",
          {{"tensor", untied.lm_head.parts.front().name + ".weight"}});
      return untied;
    }
  }
  return MakeWeightLayout(config, chosen);
}

}  // namespace

absl::StatusOr<WeightLayout> CheckWeightFiles(const ModelConfig& config, const WeightFiles& files) {
  WeightLayout layout = LayoutOf(config, files);
  for (LayerLayout& layer : layout.layers) {
    for (size_t part = 0; files.has_paired_rows() && part < 2; ++part) {  // q and k
      layer.qkv.parts[part].paired_head_rows = config.head_dim;
    }
  }
  QUIRE_ASSIGN_OR_RETURN(const QuantizedMatrices quantized,
                         QuantizedMatrices::Open(config.quantization, layout, files));
  FileChecker checker(files, quantized);
  for (const TensorGroup& group : TensorGroups(layout)) {
    QUIRE_RETURN_IF_ERROR(checker.Check(group));
  }
  for (const LayerLayout& layer : layout.layers) {
    checker.Expect(KvCacheScaleNames(layer));
  }
  QUIRE_RETURN_IF_ERROR(checker.CheckExtras(config));
  return layout;
}

}  // namespace quire
