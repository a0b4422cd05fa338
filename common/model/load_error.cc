#include "common/model/load_error.h"

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/printable.h"
#include "common/base/string_view.h"

namespace quire {

std::string PrintableName(std::string_view name) {
  constexpr size_t kMaxBytes = 120;
  return absl::StrCat(Printable(name, kMaxBytes), name.size() > kMaxBytes ? "..." : "");
}

absl::Status LoadError(std::string_view file, std::string_view rule) {
  return InvalidArgument("MODEL_FILE",
                         absl::StrCat("load: ", PrintableName(file), ": ", ToAbsl(rule)));
}

absl::Status TensorError(std::string_view file, std::string_view tensor, std::string_view rule) {
  return LoadError(file, absl::StrCat(PrintableName(tensor), ": ", ToAbsl(rule)));
}

}  // namespace quire
