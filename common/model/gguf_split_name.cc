#include "common/model/gguf_split_name.h"

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

constexpr size_t kDigits = 5;
constexpr std::string_view kBetween = "-of-";
constexpr std::string_view kExtension = ".gguf";

// Returns nullopt unless the text is digits only.
std::optional<int32_t> ParseNumber(std::string_view digits) {
  int32_t number = 0;
  for (char c : digits) {
    if (c < '0' || c > '9') {
      return std::nullopt;
    }
    number = number * 10 + (c - '0');
  }
  return number;
}

}  // namespace

std::string GgufSplitName::OfPart(int32_t part_number) const {
  return absl::StrCat(prefix,
                      "-",
                      absl::Dec(part_number, absl::kZeroPad5),
                      "-of-",
                      absl::Dec(num_parts, absl::kZeroPad5),
                      ".gguf");
}

std::optional<GgufSplitName> ParseGgufSplitName(std::string_view file_name) {
  constexpr size_t kSuffixBytes = 1 + kDigits + kBetween.size() + kDigits + kExtension.size();
  if (file_name.size() < kSuffixBytes) {
    return std::nullopt;
  }
  const std::string_view prefix = file_name.substr(0, file_name.size() - kSuffixBytes);
  const std::string_view suffix = file_name.substr(prefix.size());
  const std::optional<int32_t> number = ParseNumber(suffix.substr(1, kDigits));
  const std::optional<int32_t> num_parts =
      ParseNumber(suffix.substr(1 + kDigits + kBetween.size(), kDigits));
  if (suffix[0] != '-' || suffix.substr(1 + kDigits, kBetween.size()) != kBetween ||
      !suffix.ends_with(kExtension) || !number.has_value() || !num_parts.has_value() ||
      *number < 1 || *number > *num_parts) {
    return std::nullopt;
  }
  return GgufSplitName{.prefix = std::string(prefix), .number = *number, .num_parts = *num_parts};
}

}  // namespace quire
