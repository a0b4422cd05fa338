// Another project's attention kernels, which take turns with ours on the same pages. They are
// compiled beforehand into a separate library (make_peers.sh), which gpu_bench opens if it is
// given. The peers read rows in plain order, and ours are swizzled. Both orders give the same bytes
// of random numbers, and each kernel's outputs are checked with its own order.
//
// Types:         bf16; causal attention.
// Errors:        0, a cudaError_t, or kPeerUnsupported.
// Thread safety: one thread.
#ifndef QUIRE_TESTS_GPU_PEER_API_H_
#define QUIRE_TESTS_GPU_PEER_API_H_

#include <cstdint>

namespace quire::gpu {

inline constexpr int kPeerUnsupported = -1;

// Strides are in elements.
struct PeerBatch {
  int32_t num_seqs = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size_tokens = 0;
  int32_t table_width = 0;               // blocks of each sequence, and width of block tables
  const int32_t* query_start = nullptr;  // [num_seqs + 1], on the host
  const int32_t* seq_lens = nullptr;     // [num_seqs], on the host
  int64_t q_row_stride = 0;
  int64_t block_stride = 0;  // of keys and of values
  int64_t head_stride = 0;
  float scale = 0.0F;
};

// Device memory of one call.
struct PeerCall {
  const void* q = nullptr;
  void* out = nullptr;  // [num_tokens, num_heads, head_dim]
  const void* keys = nullptr;
  const void* values = nullptr;
  const int32_t* block_tables = nullptr;  // [num_seqs, table_width]
};

}  // namespace quire::gpu

// The library's functions. QuirePeerCreate plans a batch, and waits. QuirePeerRun only enqueues
// work.
extern "C" {
const char* QuirePeerName(int kind);  // null for the first kind that is missing, and later
int QuirePeerCreate(int kind, const quire::gpu::PeerBatch* batch, void** peer);
int QuirePeerRun(void* peer, const quire::gpu::PeerCall* call, void* stream);
void QuirePeerDestroy(void* peer);
}

#endif  // QUIRE_TESTS_GPU_PEER_API_H_
