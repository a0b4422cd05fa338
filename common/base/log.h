// Log writes one line per call: time, level, a sentence, then key=value pairs. With
// LogFormat::kJson the line is a JSON object with the same parts, all of them strings. Contents of
// users' requests (prompts, outputs, token ids) are never logged; request ids and counts are
// logged.
//
// For example LogInfo("worker ready", {{"rank", absl::StrCat(rank)}}).
//
// Thread safety: safe from any thread, and never waits: another thread writes to standard error.
//                Lines are lost while standard error has no reader (lossy_writer.h).
#ifndef QUIRE_COMMON_BASE_LOG_H_
#define QUIRE_COMMON_BASE_LOG_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace quire {

enum class LogFormat { kText, kJson };
enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

using LogField = std::pair<std::string_view, std::string>;
using LogFields = std::initializer_list<LogField>;

void Log(LogLevel level, std::string_view sentence, LogFields fields = {});

// Lines below this level are dropped. Default kInfo.
void SetLogLevel(LogLevel level);

// Sets the format of all later lines. Default kText.
void SetLogFormat(LogFormat format);

inline void LogDebug(std::string_view sentence, LogFields fields = {}) {
  Log(LogLevel::kDebug, sentence, fields);
}
inline void LogInfo(std::string_view sentence, LogFields fields = {}) {
  Log(LogLevel::kInfo, sentence, fields);
}
inline void LogWarning(std::string_view sentence, LogFields fields = {}) {
  Log(LogLevel::kWarning, sentence, fields);
}
inline void LogError(std::string_view sentence, LogFields fields = {}) {
  Log(LogLevel::kError, sentence, fields);
}

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_LOG_H_
