#include "common/model/model_path.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "common/model/gguf_split_name.h"

namespace quire {
namespace {

constexpr std::string_view kGgufSuffix = ".gguf";

}  // namespace

bool IsGgufPath(const std::string& model_path) {
  std::error_code error;
  return model_path.ends_with(kGgufSuffix) && !std::filesystem::is_directory(model_path, error);
}

std::string ModelNameOf(const std::string& model_path) {
  std::filesystem::path path(model_path);
  if (!path.has_filename()) {  // the path ends with a slash
    path = path.parent_path();
  }
  std::string name = path.filename().string();
  if (IsGgufPath(model_path)) {
    const std::optional<GgufSplitName> part = ParseGgufSplitName(name);
    name = part.has_value() ? part->prefix : name.substr(0, name.size() - kGgufSuffix.size());
  }
  return name.empty() || name == "." || name == ".." ? "model" : name;
}

}  // namespace quire
