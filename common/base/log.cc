#include "common/base/log.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <nlohmann/json.hpp>

#include "common/base/lossy_writer.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

// Level and format are read with memory_order_relaxed: after a change, a thread may write a few
// more lines with the old values.
std::atomic<LogLevel> log_level{LogLevel::kInfo};
std::atomic<LogFormat> log_format{LogFormat::kText};

constexpr const char* kLevelNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};

bool IsControl(char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }

// Appends the value, in quotes unless it is one word. Control characters become spaces.
void AppendValue(std::string& line, std::string_view value) {
  const bool is_word = std::none_of(value.begin(), value.end(), [](char c) {
    return IsControl(c) || c == ' ' || c == '"' || c == '=';
  });
  if (is_word && !value.empty()) {
    line.append(value);
    return;
  }
  line.push_back('"');
  for (char c : value) {
    if (c == '"' || c == '\\') {
      line.push_back('\\');
    }
    line.push_back(IsControl(c) ? ' ' : c);
  }
  line.push_back('"');
}

std::string TextLine(std::string_view time,
                     std::string_view level,
                     std::string_view sentence,
                     LogFields fields) {
  std::string line = absl::StrCat(ToAbsl(time), " ", ToAbsl(level), " ", ToAbsl(sentence));
  for (const auto& [key, value] : fields) {
    absl::StrAppend(&line, " ", ToAbsl(key), "=");
    AppendValue(line, value);
  }
  return line;
}

// Returns the line as JSON. Replaces bytes that are not valid UTF-8; a file path may have such
// bytes.
std::string JsonLine(std::string_view time,
                     std::string_view level,
                     std::string_view sentence,
                     LogFields fields) {
  nlohmann::ordered_json line = {{"time", time}, {"level", level}, {"message", sentence}};
  for (const auto& [key, value] : fields) {
    line[std::string(key)] = value;
  }
  return line.dump(
      /*indent=*/-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

void SetLogFormat(LogFormat format) { log_format.store(format, std::memory_order_relaxed); }

void SetLogLevel(LogLevel level) { log_level.store(level, std::memory_order_relaxed); }

void Log(LogLevel level, std::string_view sentence, LogFields fields) {
  if (level < log_level.load(std::memory_order_relaxed)) {
    return;
  }
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  const bool is_json = log_format.load(std::memory_order_relaxed) == LogFormat::kJson;
  std::string line =
      (is_json ? JsonLine : TextLine)(time, kLevelNames[static_cast<int>(level)], sentence, fields);
  line.push_back('\n');
  StandardError().Write(line);
}

}  // namespace quire
