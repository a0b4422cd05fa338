#include "tests/gpu/peer_library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

namespace quire::gpu {

struct PlannedPeer::Functions {
  decltype(&QuirePeerName) name = nullptr;
  decltype(&QuirePeerCreate) create = nullptr;
  decltype(&QuirePeerRun) run = nullptr;
  decltype(&QuirePeerDestroy) destroy = nullptr;
};

const PlannedPeer::Functions& PlannedPeer::Open(const std::string& path) {
  static const Functions functions = [&] {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          library != nullptr ? dlsym(library, name) : nullptr);
      if (function == nullptr) {
        fprintf(stderr, "gpu_bench: %s: %s\n", path.c_str(), dlerror());
        exit(EXIT_FAILURE);
      }
    };
    Functions found;
    find(found.name, "QuirePeerName");
    find(found.create, "QuirePeerCreate");
    find(found.run, "QuirePeerRun");
    find(found.destroy, "QuirePeerDestroy");
    return found;
  }();
  return functions;
}

std::unique_ptr<PlannedPeer> PlannedPeer::Make(const std::string& path,
                                               int kind,
                                               const AttentionBatch& batch) {
  const AttentionShape& shape = batch.shape();
  if (path.empty() || shape.dtype != DType::kBF16 || shape.cache_dtype != DType::kBF16) {
    return nullptr;
  }
  const PagedAttentionParams args = batch.Args(0);
  const KvCacheLayout& layout = args.cache.layout;
  std::vector<int32_t> query_start = {0};
  std::vector<int32_t> seq_lens;
  for (const SequenceLengths& sequence : batch.sequences()) {
    query_start.push_back(query_start.back() + sequence.query_len);
    seq_lens.push_back(sequence.seq_len);
  }
  const PeerBatch of_peer = {.num_seqs = args.num_seqs,
                             .num_heads = args.num_heads,
                             .num_kv_heads = layout.num_kv_heads,
                             .head_dim = layout.head_dim,
                             .block_size_tokens = layout.block_size_tokens,
                             .table_width = args.max_blocks_per_seq,
                             .query_start = query_start.data(),
                             .seq_lens = seq_lens.data(),
                             .q_row_stride = args.q_row_stride,
                             .block_stride = layout.block_stride,
                             .head_stride = layout.head_stride,
                             .scale = args.scale};
  const Functions& functions = Open(path);
  void* peer = nullptr;
  const int error = functions.create(kind, &of_peer, &peer);
  if (error == kPeerUnsupported) {
    return nullptr;
  }
  Require(error, "create peer");
  return std::unique_ptr<PlannedPeer>(new PlannedPeer(functions, functions.name(kind), peer));
}

PlannedPeer::~PlannedPeer() { functions_.destroy(peer_); }

int PlannedPeer::Run(const AttentionBatch& batch, int set, Stream stream) const {
  const PagedAttentionParams args = batch.Args(set);
  const KvCacheLayout& layout = args.cache.layout;
  const int64_t first = args.layer * layout.layer_stride * SizeOf(layout.dtype);
  const char* keys = static_cast<const char*>(args.cache.base) + first;
  const PeerCall call = {.q = args.q,
                         .out = args.out,
                         .keys = keys,
                         .values = keys + layout.value_offset * SizeOf(layout.dtype),
                         .block_tables = args.block_tables};
  return functions_.run(peer_, &call, stream);
}

}  // namespace quire::gpu
