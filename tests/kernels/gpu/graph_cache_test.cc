#include "kernels/gpu/graph_cache.h"

#include <cstdint>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using testing::ElementsAre;

// A device whose graphs are numbers.
struct Device {
  int64_t free_bytes = 10'000;
  int64_t graph_bytes = 100;  // of the next graph
  int end_error = 0;
  uintptr_t num_made = 0;
  bool is_recording = false;
  std::set<uintptr_t> graphs;
};
Device device;

gpu::GpuApi Api() {
  gpu::GpuApi api;
  api.query_device = [](int32_t /*index*/, gpu::DeviceInfo* info) {
    EXPECT_FALSE(device.is_recording) << "a device may refuse to be asked during a recording";
    info->free_bytes = device.free_bytes;
    return 0;
  };
  api.begin_graph = [](gpu::Stream) {
    device.is_recording = true;
    return 0;
  };
  api.end_graph = [](gpu::Stream, gpu::Graph* graph) {
    device.is_recording = false;
    if (device.end_error != 0) {
      return device.end_error;
    }
    if (device.graph_bytes > device.free_bytes) {
      return gpu::kOutOfMemory;
    }
    device.free_bytes -= device.graph_bytes;
    device.graphs.insert(++device.num_made);
    *graph = reinterpret_cast<gpu::Graph>(device.num_made);  // NOLINT(performance-no-int-to-ptr)
    return 0;
  };
  api.destroy_graph = [](gpu::Graph graph) {
    EXPECT_EQ(device.graphs.erase(reinterpret_cast<uintptr_t>(graph)), 1U);
    return 0;
  };
  return api;
}

class GraphCacheTest : public testing::Test {
 protected:
  GraphCacheTest() { device = {}; }

  static gpu::Graph Record(GraphCache& cache, uint64_t name) {
    cache.BeginRecording(nullptr);
    return cache.EndRecording(name, nullptr);
  }

  const gpu::GpuApi api_ = Api();
};

TEST_F(GraphCacheTest, TheLeastRecentlyUsedGraphGoes) {
  GraphCache cache(api_, 0, {.max_graphs = 3, .max_bytes = 10'000});
  for (uint64_t name = 1; name <= 3; ++name) {
    EXPECT_NE(Record(cache, name), nullptr);
  }
  EXPECT_NE(cache.Find(1), nullptr);

  EXPECT_NE(Record(cache, 4), nullptr);

  EXPECT_EQ(cache.Find(2), nullptr);
  EXPECT_NE(cache.Find(1), nullptr);
  EXPECT_NE(cache.Find(3), nullptr);
  EXPECT_NE(cache.Find(4), nullptr);
  EXPECT_THAT(device.graphs, ElementsAre(1, 3, 4));
  cache.Clear();
  EXPECT_TRUE(device.graphs.empty());
  EXPECT_EQ(cache.bytes(), 0);
}

TEST_F(GraphCacheTest, TheMemoryOfGraphsIsMeasuredAndBounded) {
  GraphCache cache(api_, 0, {.max_graphs = 100, .max_bytes = 350});
  for (uint64_t name = 1; name <= 3; ++name) {
    Record(cache, name);
  }
  EXPECT_EQ(cache.bytes(), 300);
  Record(cache, 4);  // 300 bytes leave room for one more
  EXPECT_EQ(cache.size(), 4U);

  Record(cache, 5);

  EXPECT_EQ(cache.size(), 4U);
  EXPECT_EQ(cache.Find(1), nullptr);
  EXPECT_LE(cache.bytes(), 350 + 100);
}

TEST_F(GraphCacheTest, ADeviceThatCannotRecordAnOperationRunsStepsWithoutGraphs) {
  device.end_error = 900;  // cudaErrorStreamCaptureUnsupported
  GraphCache cache(api_, 0, {.max_graphs = 100, .max_bytes = 10'000});

  EXPECT_EQ(Record(cache, 1), nullptr);

  EXPECT_FALSE(cache.can_record());
}

TEST_F(GraphCacheTest, ADeviceWithoutMemoryKeepsTheGraphsThatItHas) {
  device.free_bytes = 250;
  GraphCache cache(api_, 0, {.max_graphs = 100, .max_bytes = 10'000});
  Record(cache, 1);
  Record(cache, 2);

  EXPECT_EQ(Record(cache, 3), nullptr);

  EXPECT_EQ(cache.size(), 2U);
  EXPECT_TRUE(cache.can_record());
  // From now on a graph takes the place of another.
  device.free_bytes += 100;
  EXPECT_NE(Record(cache, 3), nullptr);
  EXPECT_EQ(cache.size(), 2U);
  EXPECT_EQ(cache.Find(1), nullptr);
}

TEST_F(GraphCacheTest, ADeviceWithoutMemoryForAnyGraphIsNotAskedAgain) {
  device.free_bytes = 0;
  GraphCache cache(api_, 0, {.max_graphs = 100, .max_bytes = 10'000});

  EXPECT_EQ(Record(cache, 1), nullptr);

  EXPECT_FALSE(cache.can_record());
  cache.Clear();
  EXPECT_TRUE(cache.can_record()) << "memory may have been freed";
}

TEST_F(GraphCacheTest, OperationsRunOnceBeforeTheyAreRecorded) {
  GraphCache cache(api_, 0, {.max_graphs = 2, .max_bytes = 10'000});
  EXPECT_FALSE(cache.HasRun(1));
  EXPECT_TRUE(cache.HasRun(1));
  // Names that never come again are forgotten.
  EXPECT_FALSE(cache.HasRun(7));
  for (uint64_t name = 100; name < 104; ++name) {
    EXPECT_FALSE(cache.HasRun(name));
  }
  EXPECT_FALSE(cache.HasRun(7));
}

}  // namespace
}  // namespace quire
