// The values of quant_method: each function reads quantization_config as one tool writes it.
//
// Thread safety: free functions, safe from any thread.
// Errors:        kInvalidArgument, reason CONFIG, "config.json: quantization_config.<field>: rule".
#ifndef QUIRE_COMMON_MODEL_QUANTIZATION_METHODS_H_
#define QUIRE_COMMON_MODEL_QUANTIZATION_METHODS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/model/config_reader.h"
#include "common/model/quantization_config.h"

namespace quire {

absl::StatusOr<QuantizationConfig> ParseCompressedTensors(ConfigReader& reader);
absl::StatusOr<QuantizationConfig> ParseAwq(ConfigReader& reader);
absl::StatusOr<QuantizationConfig> ParseGptq(ConfigReader& reader);
// Methods fp8 and fbgemm_fp8.
absl::StatusOr<QuantizationConfig> ParseFp8(ConfigReader& reader);

// Upper bound on the regular expressions of a directory, which limits the time to find the schemes
// of all modules. Published directories have a few.
inline constexpr size_t kMaxRegexes = 64;

// A published format that is not supported, and the supported one that is most like it.
struct NearestFormat {
  std::string_view name;
  std::string_view nearest;
};

// Returns the rule that refuses the format. `supported`: all supported ones, if no other is near.
std::string NotSupported(std::string_view name,
                         std::span<const NearestFormat> others,
                         std::string_view supported);

// Returns the patterns of a list of strings; none if the field is missing or null.
std::vector<NamePattern> NamePatterns(ConfigReader& reader, std::string_view field);

// Returns the columns that share a scale. A missing field and -1 mean whole rows: 0.
int32_t GroupCols(ConfigReader& reader, std::string_view field);

// Sets the rows and columns that share a scale from a list of two sizes.
void ReadBlock(ConfigReader& reader, std::string_view field, WeightScheme& scheme);

// Refuses a string other than `only`, in any case. Accepts a missing field.
void RequireText(ConfigReader& reader, std::string_view field, std::string_view only);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_QUANTIZATION_METHODS_H_
