#include "kernels/cuda/gemm_cache.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

namespace quire::gpu {
namespace {

constexpr std::string_view kFirstLine = "quire-gemm-cache 1";
constexpr int64_t kMaxFileBytes = int64_t{16} << 20;
constexpr size_t kDigitsPerWord = 16;
constexpr size_t kColumns = 9;

// Removes the text up to and including the first separator. Returns the removed text without the
// separator. If there is no separator, removes and returns all text.
std::string_view Take(std::string_view* text, char separator) {
  const size_t end = text->find(separator);
  const std::string_view head = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return head;
}

template <typename Number>
bool ParseNumber(std::string_view text, int base, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number, base);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseDType(std::string_view text, DType* dtype) {
  for (const DType candidate : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    if (text == NameOf(candidate)) {
      *dtype = candidate;
      return true;
    }
  }
  return false;
}

bool ParseAlgorithm(std::string_view text, GemmAlgorithm* algorithm) {
  if (text.size() != algorithm->size() * kDigitsPerWord) {
    return false;
  }
  for (uint64_t& word : *algorithm) {
    if (!ParseNumber(text.substr(0, kDigitsPerWord), 16, &word)) {
      return false;
    }
    text.remove_prefix(kDigitsPerWord);
  }
  return true;
}

bool ParseLine(std::string_view line, GemmKey* key, GemmAlgorithm* algorithm) {
  std::vector<std::string_view> columns;
  while (!line.empty()) {
    columns.push_back(Take(&line, '\t'));
  }
  if (columns.size() != kColumns || (columns[4] != "0" && columns[4] != "1")) {
    return false;
  }
  key->has_bias = columns[4] == "1";
  key->device = columns[8];
  return ParseNumber(columns[0], 10, &key->version) && ParseNumber(columns[1], 10, &key->rows) &&
         ParseNumber(columns[2], 10, &key->out_features) &&
         ParseNumber(columns[3], 10, &key->in_features) && ParseDType(columns[5], &key->dtype) &&
         ParseDType(columns[6], &key->y_dtype) && ParseAlgorithm(columns[7], algorithm) &&
         key->rows > 0 && key->out_features > 0 && key->in_features > 0;
}

std::string FormatAlgorithm(const GemmAlgorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm) {
    char digits[kDigitsPerWord + 1];
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(word));
    text += digits;
  }
  return text;
}

}  // namespace

int64_t RowRange(int64_t rows) {
  const int64_t step = rows <= 8 ? 1 : rows <= 64 ? 8 : rows <= 256 ? 32 : rows <= 1024 ? 128 : 512;
  return (rows + step - 1) / step * step;
}

std::optional<GemmAlgorithm> GemmCache::Find(const GemmKey& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::nullopt : std::make_optional(found->second);
}

void GemmCache::Merge(const GemmCache& other) {
  for (const auto& [key, algorithm] : other.entries_) {
    entries_[key] = algorithm;
  }
}

std::string GemmCache::Format() const {
  std::ostringstream text;
  text << kFirstLine << '\n';
  for (const auto& [key, algorithm] : entries_) {
    text << key.version << '\t' << key.rows << '\t' << key.out_features << '\t' << key.in_features
         << '\t' << (key.has_bias ? 1 : 0) << '\t' << NameOf(key.dtype) << '\t'
         << NameOf(key.y_dtype) << '\t' << FormatAlgorithm(algorithm) << '\t' << key.device << '\n';
  }
  return text.str();
}

std::optional<GemmCache> GemmCache::Parse(std::string_view text) {
  // A file whose last line has no line break was truncated.
  if (!text.ends_with('\n') || Take(&text, '\n') != kFirstLine) {
    return std::nullopt;
  }
  GemmCache cache;
  while (!text.empty()) {
    GemmKey key;
    GemmAlgorithm algorithm = {};
    if (!ParseLine(Take(&text, '\n'), &key, &algorithm)) {
      return std::nullopt;
    }
    cache.Insert(key, algorithm);
  }
  return cache;
}

GemmCacheState LoadGemmCache(const std::string& path, GemmCache* cache) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return error ? GemmCacheState::kUnreadable : GemmCacheState::kMissing;
  }
  const auto bytes = std::filesystem::file_size(path, error);
  if (error || bytes > static_cast<uint64_t>(kMaxFileBytes)) {
    return GemmCacheState::kUnreadable;
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!file) {
    return GemmCacheState::kUnreadable;
  }
  std::optional<GemmCache> parsed = GemmCache::Parse(text);
  if (!parsed.has_value()) {
    return GemmCacheState::kUnreadable;
  }
  *cache = *std::move(parsed);
  return GemmCacheState::kRead;
}

bool SaveGemmCache(const std::string& path, const GemmCache& cache) {
  std::error_code error;
  const std::filesystem::path target(path);
  if (target.has_parent_path()) {
    std::filesystem::create_directories(target.parent_path(), error);
  }
  const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << cache.Format();
  file.close();
  if (file) {
    std::filesystem::rename(temporary, target, error);
    if (!error) {
      return true;
    }
  }
  std::filesystem::remove(temporary, error);
  return false;
}

}  // namespace quire::gpu
