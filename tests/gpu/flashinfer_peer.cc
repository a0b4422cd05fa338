#include "tests/gpu/flashinfer_peer.h"

#include <cstdio>
#include <exception>
#include <vector>

#include <cuda_runtime_api.h>

namespace quire::gpu {

PeerMemory::PeerMemory(const PeerBatch& batch)
    : host_page_starts_(new int32_t[static_cast<size_t>(batch.num_seqs) + 1]) {
  std::vector<int32_t> last(static_cast<size_t>(batch.num_seqs));
  for (int32_t i = 0; i <= batch.num_seqs; ++i) {
    host_page_starts_[static_cast<size_t>(i)] = i * batch.table_width;
  }
  for (int32_t i = 0; i < batch.num_seqs; ++i) {
    const int32_t before = (batch.table_width - 1) * batch.block_size_tokens;
    last[static_cast<size_t>(i)] = batch.seq_lens[i] - before;
    const bool has_width =
        batch.seq_lens[i] > before && batch.seq_lens[i] <= before + batch.block_size_tokens;
    error_ = has_width ? error_ : kPeerUnsupported;
  }
  error_ = error_ != 0 ? error_ : cudaMalloc(&floats_, kFloatBytes);
  error_ = error_ != 0 ? error_ : cudaMalloc(&ints_, kIntBytes);
  error_ = error_ != 0 ? error_ : cudaMallocHost(&pinned_, kIntBytes);
  Upload(&page_starts_, host_page_starts_.get(), batch.num_seqs + 1);
  Upload(&query_starts_, batch.query_start, batch.num_seqs + 1);
  Upload(&last_page_tokens_, last.data(), batch.num_seqs);
}

void PeerMemory::Upload(int32_t** to, const int32_t* from, int32_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(int32_t);
  error_ = error_ != 0 ? error_ : cudaMalloc(reinterpret_cast<void**>(to), bytes);
  error_ = error_ != 0 ? error_ : cudaMemcpy(*to, from, bytes, cudaMemcpyHostToDevice);
}

PeerMemory::~PeerMemory() {
  cudaFree(floats_);
  cudaFree(ints_);
  cudaFreeHost(pinned_);
  cudaFree(page_starts_);
  cudaFree(query_starts_);
  cudaFree(last_page_tokens_);
}

namespace {

struct Kind {
  const char* name;
  std::unique_ptr<Peer> (*make)(const PeerBatch& batch, int* error);
};
constexpr Kind kKinds[] = {{"flashinfer", MakeFlashInferDecode},
                           {"flashinfer sm90", MakeFlashInferPrefill}};
constexpr int kNumKinds = 2;

// Returns body's result, or kPeerUnsupported if it throws. FlashInfer throws if it refuses
// something.
template <typename Body>
int WithoutExceptions(Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    fprintf(stderr, "FlashInfer: %s\n", error.what());
    return kPeerUnsupported;
  }
}

}  // namespace
}  // namespace quire::gpu

const char* QuirePeerName(int kind) {
  return kind < quire::gpu::kNumKinds ? quire::gpu::kKinds[kind].name : nullptr;
}

int QuirePeerCreate(int kind, const quire::gpu::PeerBatch* batch, void** peer) {
  return quire::gpu::WithoutExceptions([&] {
    int error = 0;
    *peer = quire::gpu::kKinds[kind].make(*batch, &error).release();
    return error;
  });
}

int QuirePeerRun(void* peer, const quire::gpu::PeerCall* call, void* stream) {
  return quire::gpu::WithoutExceptions(
      [&] { return static_cast<quire::gpu::Peer*>(peer)->Run(*call, stream); });
}

void QuirePeerDestroy(void* peer) { delete static_cast<quire::gpu::Peer*>(peer); }
