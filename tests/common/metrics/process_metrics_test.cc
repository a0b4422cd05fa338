#include "common/metrics/process_metrics.h"

#include <unistd.h>

#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/metric_type.h"

#include "common/metrics/registry.h"

#include <sys/resource.h>

namespace quire {
namespace {

using testing::HasSubstr;

std::map<std::string, double> Values() {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : ProcessMetrics().Collect()) {
    const prometheus::ClientMetric& metric = family.metric.front();
    values[family.name] =
        family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
  }
  return values;
}

TEST(ProcessMetricsTest, MemoryGrowsByWhatIsTouched) {
  constexpr size_t kBytes = size_t{64} << 20;
  const double before = Values().at("process_resident_memory_bytes");

  const std::vector<char> touched(kBytes, 'x');

  const double after = Values().at("process_resident_memory_bytes");
  EXPECT_GE(after - before, 0.9 * kBytes);
  EXPECT_LE(after - before, 1.5 * kBytes);
  EXPECT_GT(Values().at("process_virtual_memory_bytes"), after);
}

TEST(ProcessMetricsTest, FilesAreCounted) {
  const double before = Values().at("process_open_fds");

  const int fd = ::dup(STDOUT_FILENO);

  EXPECT_EQ(Values().at("process_open_fds"), before + 1);
  ::close(fd);
  EXPECT_EQ(Values().at("process_open_fds"), before);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(Values().at("process_max_fds"), static_cast<double>(limit.rlim_cur));
}

TEST(ProcessMetricsTest, ProcessorTimeIsThatOfTheProcess) {
  rusage usage{};
  do {
    ::getrusage(RUSAGE_SELF, &usage);
  } while (usage.ru_utime.tv_sec == 0 && usage.ru_utime.tv_usec < 50'000);

  const double seconds = Values().at("process_cpu_seconds_total");

  // Ticks are hundredths of a second.
  ::getrusage(RUSAGE_SELF, &usage);
  const double most = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                      1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) +
                      0.05;
  EXPECT_GE(seconds, 0.03);
  EXPECT_LE(seconds, most);
}

TEST(ProcessMetricsTest, TheStartLiesInThePast) {
  const double start = Values().at("process_start_time_seconds");

  EXPECT_LE(start, static_cast<double>(std::time(nullptr)) + 1);
  EXPECT_GT(start, static_cast<double>(std::time(nullptr)) - 24 * 3600);
}

TEST(ProcessMetricsTest, ARegistryShowsThemUnderOurNames) {
  MetricsRegistry registry;
  registry.Add(std::make_shared<ProcessMetrics>());

  EXPECT_THAT(registry.NativeText(), HasSubstr("\nprocess_open_fds "));
  EXPECT_THAT(registry.AllText(), HasSubstr("# TYPE process_cpu_seconds_total counter\n"));
}

}  // namespace
}  // namespace quire
