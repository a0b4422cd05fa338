#include "scheduler/text/gguf_pre_tokenizer.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr std::string_view kKey = "tokenizer.ggml.pre";

// WordSplitter recognizes the first three patterns by their exact text. A pattern with any other
// text runs in the slower Pattern engine.
constexpr char kGpt2Words[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlama3Words[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2Words[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                               R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekkenWords[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A pre-tokenizer and its names in GGUF files. The patterns are applied in order: each one cuts the
// pieces that the previous one made.
struct Row {
  std::vector<std::string_view> names;
  std::vector<const char*> patterns;
  bool ignore_merges = false;
  bool adds_bos = false;
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
      {.names = {"default"},
       .patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Words, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
      {.names = {"gpt-2", "phi-2", "mpt", "olmo"}, .patterns = {kGpt2Words}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"},
       .patterns = {R"(\p{N})", kGpt2Words}},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"},
       .patterns = {kLlama3Words},
       .ignore_merges = true,
       .adds_bos = true},
      {.names = {"smaug-bpe", "dbrx"}, .patterns = {kLlama3Words}},
      {.names = {"qwen2", "deepseek-r1-qwen", "megrez"}, .patterns = {kQwen2Words}},
      {.names = {"tekken"}, .patterns = {kTekkenWords}, .ignore_merges = true, .adds_bos = true},
      {.names = {"deepseek-coder"},
       .patterns = {R"([\r\n])",
                    R"(\s?\p{L}+)",
                    R"(\s?\p{P}+)",
                    "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+",
                    R"(\p{N})"}},
  };
  return rows;
}

Json StepsOf(const Row& row) {
  Json steps = Json::array();
  for (const char* pattern : row.patterns) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

}  // namespace

absl::StatusOr<GgufPreTokenizer> ReadGgufPreTokenizer(const GgufMetadata& metadata) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view name,
                         IfMissing(metadata.GetString(kKey), "default"));
  std::string known;
  for (const Row& row : Rows()) {
    if (std::find(row.names.begin(), row.names.end(), name) != row.names.end()) {
      GgufPreTokenizer found = {.normalizer = nullptr,
                                .pre_tokenizer = StepsOf(row),
                                .ignore_merges = row.ignore_merges,
                                .adds_bos = row.adds_bos};
      // Qwen's own tokenizer.json has this normalizer, although llama.cpp leaves it out.
      if (name == "qwen2") {
        found.normalizer = {{"type", "NFC"}};
      }
      return found;
    }
    for (const std::string_view each : row.names) {
      absl::StrAppend(&known, known.empty() ? "" : ", ", ToAbsl(each));
    }
  }
  return metadata.KeyError(
      kKey,
      absl::StrCat("must be one of ", known, " (got ", Printable(name, /*max_bytes=*/64), ")"));
}

}  // namespace quire
