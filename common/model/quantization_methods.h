// One parser for each supported value of quant_method, and helpers that the parsers share. Each
// parser reads quantization_config as one quantization tool writes it.
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
// For the methods fp8 and fbgemm_fp8.
absl::StatusOr<QuantizationConfig> ParseFp8(ConfigReader& reader);

// Upper bound on the regular expressions in a quantization_config. It limits the time to find the
// schemes of all modules. Published directories have a few.
inline constexpr size_t kMaxRegexes = 64;

// An unsupported published format, and the supported format that is most like it.
struct NearestFormat {
  std::string_view name;
  std::string_view nearest;
};

// Returns the error text for an unsupported format. It names the nearest format if `others` lists
// `name`, else all formats in `supported`.
std::string NotSupported(std::string_view name,
                         std::span<const NearestFormat> others,
                         std::string_view supported);

// Parses a list of strings as patterns. Returns no patterns if the field is missing or null.
std::vector<NamePattern> NamePatterns(ConfigReader& reader, std::string_view field);

// Returns the number of columns that share a scale. Returns 0, which means whole rows, if the field
// is missing or -1.
int32_t GroupCols(ConfigReader& reader, std::string_view field);

// Sets group_rows and group_cols from a list of two sizes, [rows, columns].
void ReadBlock(ConfigReader& reader, std::string_view field, WeightScheme& scheme);

// Refuses a string other than `only`, without regard to upper and lower case. Accepts a missing
// field.
void RequireText(ConfigReader& reader, std::string_view field, std::string_view only);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_QUANTIZATION_METHODS_H_
