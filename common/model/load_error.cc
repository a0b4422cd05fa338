#include "common/model/load_error.h"

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/string_view.h"

namespace quire {

std::string Printable(std::string_view name) {
  constexpr size_t kMaxBytes = 120;
  std::string shown(name.substr(0, kMaxBytes));
  for (char& c : shown) {
    if (c < 0x20 || c > 0x7e) {
      c = '?';
    }
  }
  return name.size() > kMaxBytes ? shown + "..." : shown;
}

absl::Status LoadError(std::string_view file, std::string_view rule) {
  return InvalidArgument("MODEL_FILE", absl::StrCat("load: ", Printable(file), ": ", ToAbsl(rule)));
}

absl::Status TensorError(std::string_view file, std::string_view tensor, std::string_view rule) {
  return LoadError(file, absl::StrCat(Printable(tensor), ": ", ToAbsl(rule)));
}

}  // namespace quire
