#include "kernels/gpu/graph_cache.h"

#include <algorithm>
#include <string>

#include "common/base/log.h"
#include "kernels/gpu/gpu_memory.h"

namespace quire {

gpu::Graph GraphCache::Find(uint64_t name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->graph;
}

bool GraphCache::HasRun(uint64_t name) {
  const auto found = std::find(have_run_.begin(), have_run_.end(), name);
  if (found != have_run_.end()) {
    have_run_.erase(found);
    return true;
  }
  have_run_.push_back(name);
  if (have_run_.size() > 2 * limits_.max_graphs) {
    have_run_.pop_front();
  }
  return false;
}

void GraphCache::BeginRecording(gpu::Stream stream) {
  MakeRoom();
  free_before_ = FreeBytes();
  RequireGpu(api_, api_.begin_graph(stream), "begin graph");
}

gpu::Graph GraphCache::EndRecording(uint64_t name, gpu::Stream stream) {
  gpu::Graph graph = nullptr;
  const int error = api_.end_graph(stream, &graph);
  if (error != 0) {
    // Memory ran out, or the device cannot record one of the operations. Steps can run without a
    // graph. If the device has failed, the next call reports the error again.
    max_graphs_ = entries_.size();
    LogWarning("the device makes no further graph; some steps run without one",
               {{"error", std::to_string(error)},
                {"graphs", std::to_string(entries_.size())},
                {"bytes", std::to_string(bytes_)}});
    return nullptr;
  }
  const int64_t bytes = std::max<int64_t>(0, free_before_ - FreeBytes());
  bytes_ += bytes;
  entries_.push_front({.name = name, .graph = graph, .bytes = bytes});
  by_name_[name] = entries_.begin();
  return graph;
}

void GraphCache::AbandonRecording(gpu::Stream stream) {
  gpu::Graph graph = nullptr;
  if (api_.end_graph(stream, &graph) == 0) {
    RequireGpu(api_, api_.destroy_graph(graph), "destroy graph");
  }
}

void GraphCache::MakeRoom() {
  while (!entries_.empty() && (entries_.size() >= max_graphs_ || bytes_ >= limits_.max_bytes)) {
    DropLast();
  }
}

void GraphCache::DropLast() {
  const Entry& last = entries_.back();
  RequireGpu(api_, api_.destroy_graph(last.graph), "destroy graph");
  bytes_ -= last.bytes;
  by_name_.erase(last.name);
  entries_.pop_back();
}

void GraphCache::Clear() {
  while (!entries_.empty()) {
    DropLast();
  }
  have_run_.clear();
  max_graphs_ = limits_.max_graphs;
}

int64_t GraphCache::FreeBytes() const {
  gpu::DeviceInfo info;
  RequireGpu(api_, api_.query_device(device_index_, &info), "query device");
  return info.free_bytes;
}

}  // namespace quire
