#include "common/model/model_file.h"

#include <filesystem>
#include <system_error>

#include "common/base/error.h"

namespace quire {
namespace {

absl::Status NotFound(std::string_view rule) {
  return Error(absl::StatusCode::kNotFound, "MODEL_FILE", rule);
}

bool IsInside(const std::filesystem::path& path, const std::filesystem::path& folder) {
  auto relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != ".." && *relative.begin() != ".";
}

}  // namespace

absl::StatusOr<std::string> ResolveModelFile(const std::string& model_dir,
                                             const std::string& name) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(model_dir, error);
  if (error) {
    return NotFound("the model folder cannot be opened");
  }
  if (!std::filesystem::exists(std::filesystem::symlink_status(folder / name, error))) {
    return NotFound("no such file");
  }
  const std::filesystem::path path = std::filesystem::canonical(folder / name, error);
  if (error) {
    return InvalidArgument("MODEL_FILE", "is a symbolic link to nothing");
  }
  const bool is_hub_cache = folder.parent_path().filename() == "snapshots";
  const std::filesystem::path blobs = folder.parent_path().parent_path() / "blobs";
  if (!IsInside(path, folder) && !(is_hub_cache && IsInside(path, blobs))) {
    return InvalidArgument("MODEL_FILE", "is a symbolic link out of the model folder");
  }
  return path.string();
}

}  // namespace quire
