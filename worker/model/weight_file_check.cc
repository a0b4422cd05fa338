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
  explicit FileChecker(const WeightFiles& files) : files_(files) {}

  // Fails if a tensor is missing, has another shape than the layout's, or has an unsupported type.
  // In a directory, also fails if the types of a group's matrices differ. GGUF files mix types.
  absl::Status Check(const TensorGroup& group) {
    const StoredTensor* first = nullptr;
    for (const TensorShape& shape : group) {
      QUIRE_ASSIGN_OR_RETURN(const WeightRef weight, CheckTensor(shape));
      if (shape.rows == 0) {
        continue;
      }
      if (first != nullptr && !files_.is_gguf() && first->type_name != weight.tensor->type_name) {
        return TensorError(weight.file->name(),
                           shape.name,
                           absl::StrCat("must have the dtype of ",
                                        first->name,
                                        " (got ",
                                        weight.tensor->type_name,
                                        ", need ",
                                        first->type_name,
                                        ")"));
      }
      first = weight.tensor;
    }
    return absl::OkStatus();
  }

  // Allows tensors with these names, which are read elsewhere.
  void Expect(const std::vector<std::string>& names) { seen_.insert(names.begin(), names.end()); }

  // Fails if a tensor in the files was neither checked nor expected, and is no harmless extra.
  absl::Status CheckExtras(const ModelConfig& config) const {
    for (const auto& [name, weight] : files_.tensors()) {
      if (!seen_.contains(name) && !IsHarmlessExtra(config, name)) {
        return TensorError(weight.file->name(), weight.tensor->name, "is not part of this model");
      }
    }
    return absl::OkStatus();
  }

 private:
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
  std::set<std::string> seen_;
};

// Warns if a tied model has an output matrix that differs from the embedding. The model is served
// with the embedding, as in transformers. Only the first rows are compared, because they suffice:
// fine-tuning of the output matrix, despite tie_word_embeddings, changes these rows too.
void WarnOfAnotherHead(const WeightFiles& files, const WeightLayout& layout) {
  constexpr int64_t kComparedBytes = 64 << 10;
  const WeightRef head = files.Find("lm_head.weight");
  const WeightRef table = files.Find(layout.token_table.name + ".weight");
  if (!layout.is_tied() || head.file == nullptr || table.file == nullptr ||
      head.tensor->type_name != table.tensor->type_name ||
      head.tensor->shape != table.tensor->shape) {
    return;
  }
  std::vector<std::byte> head_bytes(std::min(kComparedBytes, head.tensor->bytes));
  std::vector<std::byte> table_bytes(head_bytes.size());
  const bool is_read = head.Read(0, head_bytes).ok() && table.Read(0, table_bytes).ok();
  if (is_read && head_bytes != table_bytes) {
    LogWarning(
        "lm_head.weight differs from the embedding and is ignored, because config.json sets "
        "tie_word_embeddings",
        {{"embedding", table.tensor->name}});
  }
}

}  // namespace

absl::StatusOr<WeightLayout> CheckWeightFiles(const ModelConfig& config, const WeightFiles& files) {
  const std::vector<std::string> prefixes = NamePrefixes(config);
  WeightLayout layout = MakeWeightLayout(config, prefixes.front());
  for (const std::string& prefix : prefixes) {
    WeightLayout candidate = MakeWeightLayout(config, prefix);
    if (files.Find(candidate.token_table.name + ".weight").file != nullptr) {
      layout = std::move(candidate);
      break;
    }
  }
  for (LayerLayout& layer : layout.layers) {
    for (size_t part = 0; files.has_paired_rows() && part < 2; ++part) {  // q and k
      layer.qkv.parts[part].paired_head_rows = config.head_dim;
    }
  }
  FileChecker checker(files);
  for (const TensorGroup& group : TensorGroups(layout)) {
    QUIRE_RETURN_IF_ERROR(checker.Check(group));
  }
  for (const LayerLayout& layer : layout.layers) {
    checker.Expect(KvCacheScaleNames(layer));
  }
  QUIRE_RETURN_IF_ERROR(checker.CheckExtras(config));
  WarnOfAnotherHead(files, layout);
  return layout;
}

}  // namespace quire
