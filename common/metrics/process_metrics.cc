#include "common/metrics/process_metrics.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>

#include "common/metrics/metric_family.h"
#include "common/metrics/metric_names.h"

#include <sys/resource.h>

namespace quire {
namespace {

// Fields of /proc/self/stat after the program's name. The name may have any characters, even ')'.
struct ProcessStat {
  int64_t user_ticks = 0;
  int64_t system_ticks = 0;
  int64_t start_ticks = 0;  // from boot to the start of the process
  int64_t virtual_bytes = 0;
  int64_t resident_pages = 0;
};

std::string ReadProcFile(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<ProcessStat> ReadStat() {
  const std::string text = ReadProcFile("/proc/self/stat");
  const size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(text.substr(end_of_name + 1));
  std::string state;
  fields >> state;
  ProcessStat stat;
  // Numbers of the fields in proc(5), where the state is field 3.
  constexpr int kUserTicks = 14;
  constexpr int kSystemTicks = 15;
  constexpr int kStartTicks = 22;
  constexpr int kVirtualBytes = 23;
  constexpr int kResidentPages = 24;
  for (int field = 4; field <= kResidentPages; ++field) {
    int64_t value = 0;
    fields >> value;
    stat.user_ticks = field == kUserTicks ? value : stat.user_ticks;
    stat.system_ticks = field == kSystemTicks ? value : stat.system_ticks;
    stat.start_ticks = field == kStartTicks ? value : stat.start_ticks;
    stat.virtual_bytes = field == kVirtualBytes ? value : stat.virtual_bytes;
    stat.resident_pages = field == kResidentPages ? value : stat.resident_pages;
  }
  return fields ? std::optional<ProcessStat>(stat) : std::nullopt;
}

// Returns the time at which the machine started, in seconds since 1970.
std::optional<double> BootTime() {
  std::istringstream text(ReadProcFile("/proc/stat"));
  for (std::string word; text >> word;) {
    double seconds = 0;
    if (word == "btime" && text >> seconds) {
      return seconds;
    }
  }
  return std::nullopt;
}

std::optional<double> NumOpenFiles() {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) {
    return std::nullopt;
  }
  double num_files = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody else reads this folder's stream
  while (const dirent* entry = ::readdir(folder)) {
    num_files += entry->d_name[0] == '.' ? 0 : 1;
  }
  ::closedir(folder);
  return num_files - 1;  // excludes the descriptor that reads the folder
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  std::vector<prometheus::MetricFamily> families;
  const auto gauge = [&families](const MetricInfo& info, double value) {
    families.push_back(GaugeFamily(info, value));
  };
  const auto ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  if (const auto stat = ReadStat()) {
    families.push_back(CounterFamily(
        metric::kProcessCpu,
        static_cast<double>(stat->user_ticks + stat->system_ticks) / ticks_per_second));
    gauge(metric::kProcessResidentMemory,
          static_cast<double>(stat->resident_pages) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
    gauge(metric::kProcessVirtualMemory, static_cast<double>(stat->virtual_bytes));
    if (const auto boot_time = BootTime()) {
      gauge(metric::kProcessStartTime,
            *boot_time + static_cast<double>(stat->start_ticks) / ticks_per_second);
    }
  }
  if (const auto num_files = NumOpenFiles()) {
    gauge(metric::kProcessOpenFds, *num_files);
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    gauge(metric::kProcessMaxFds, static_cast<double>(limit.rlim_cur));
  }
  return families;
}

}  // namespace quire
