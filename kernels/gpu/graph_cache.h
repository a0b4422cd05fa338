// GraphCache holds the graphs of steps, each under the name of its operations (OperationDigest). It
// bounds the number of graphs and their memory on the device, and drops the least recently used
// graph first.
//
// A graph's memory is measured as the free memory that the device lost while the graph was made.
// Other processes on the device disturb the measure. It need not be exact, because it only decides
// when a graph is dropped.
//
// Thread safety: one caller at a time (the executor thread).
// Errors:        a failing device ends the process, as in GpuBackend.
#ifndef QUIRE_KERNELS_GPU_GRAPH_CACHE_H_
#define QUIRE_KERNELS_GPU_GRAPH_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

#include "kernels/cuda/gpu_api.h"

namespace quire {

class GraphCache {
 public:
  struct Limits {
    size_t max_graphs = 0;
    int64_t max_bytes = 0;
  };

  GraphCache(const gpu::GpuApi& api, int32_t device_index, const Limits& limits)
      : api_(api), device_index_(device_index), limits_(limits), max_graphs_(limits.max_graphs) {}
  ~GraphCache() { Clear(); }
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Returns the graph and makes it the most recently used one. Returns null if there is none.
  gpu::Graph Find(uint64_t name);
  // Returns whether operations of this name have run before. If not, notes that they run now. The
  // second run of the same operations neither allocates nor waits, so it may be recorded as a
  // graph.
  bool HasRun(uint64_t name);
  // Whether graphs may be recorded. False after the recording of the first graph has failed.
  bool can_record() const { return max_graphs_ > 0; }
  // Makes room for one more graph, and begins to record the stream.
  void BeginRecording(gpu::Stream stream);
  // Ends the recording and keeps the graph. Returns null if the device could not make the graph. In
  // that case the operations have not run, and the cache's present number of graphs becomes its
  // limit until Clear.
  gpu::Graph EndRecording(uint64_t name, gpu::Stream stream);
  // Ends the recording and drops it, even if it is invalid.
  void AbandonRecording(gpu::Stream stream);
  // Drops all graphs, and forgets what has run. Must be called before memory that a recorded
  // operation uses is freed.
  void Clear();

  size_t size() const { return by_name_.size(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    uint64_t name = 0;
    gpu::Graph graph = nullptr;
    int64_t bytes = 0;
  };

  int64_t FreeBytes() const;
  void DropLast();
  // Drops graphs until the limits leave room for one more.
  void MakeRoom();

  const gpu::GpuApi& api_;
  const int32_t device_index_;
  const Limits limits_;
  size_t max_graphs_;         // at most limits_.max_graphs; lower if the device ran out of memory
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> by_name_;
  int64_t bytes_ = 0;
  int64_t free_before_ = 0;  // free memory when the recording began
  // Names for which HasRun has returned false; a name leaves when HasRun returns true for it.
  // Oldest first, at most 2 * max_graphs names.
  std::list<uint64_t> have_run_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GRAPH_CACHE_H_
