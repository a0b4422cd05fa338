// A peer of plain loops on host memory, for rehearsals on the emulated device. Shows that a peer
// gets the right rows and that its outputs are checked. Computes at once, not in stream order.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "tests/gpu/peer_api.h"

namespace quire::gpu {
namespace {

float ToFloat(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }

uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

class PlainPeer {
 public:
  explicit PlainPeer(const PeerBatch& batch)
      : batch_(batch),
        query_start_(batch.query_start, batch.query_start + batch.num_seqs + 1),
        seq_lens_(batch.seq_lens, batch.seq_lens + batch.num_seqs) {}

  void Run(const PeerCall& call) const {
    for (size_t seq = 0; seq < seq_lens_.size(); ++seq) {
      const int32_t first = query_start_[seq];
      const int32_t num_queries = query_start_[seq + 1] - first;
      for (int32_t query = 0; query < num_queries; ++query) {
        const int32_t num_keys = seq_lens_[seq] - num_queries + query + 1;
        for (int32_t head = 0; head < batch_.num_heads; ++head) {
          RunRow(call, static_cast<int32_t>(seq), first + query, head, num_keys);
        }
      }
    }
  }

 private:
  int64_t Place(const PeerCall& call, int32_t seq, int32_t kv_head, int32_t position) const {
    const int32_t block =
        call.block_tables[int64_t{seq} * batch_.table_width + position / batch_.block_size_tokens];
    return block * batch_.block_stride + kv_head * batch_.head_stride +
           int64_t{position % batch_.block_size_tokens} * batch_.head_dim;
  }

  void RunRow(
      const PeerCall& call, int32_t seq, int32_t token, int32_t head, int32_t num_keys) const {
    const int32_t kv_head = head / (batch_.num_heads / batch_.num_kv_heads);
    const auto* q = static_cast<const uint16_t*>(call.q) + token * batch_.q_row_stride +
                    int64_t{head} * batch_.head_dim;
    const auto* keys = static_cast<const uint16_t*>(call.keys);
    const auto* values = static_cast<const uint16_t*>(call.values);
    std::vector<float> weights(static_cast<size_t>(num_keys));
    for (int32_t key = 0; key < num_keys; ++key) {
      const int64_t place = Place(call, seq, kv_head, key);
      float dot = 0.0F;
      for (int32_t d = 0; d < batch_.head_dim; ++d) {
        dot += ToFloat(q[d]) * ToFloat(keys[place + d]);
      }
      weights[static_cast<size_t>(key)] = dot * batch_.scale;
    }
    const float max = *std::max_element(weights.begin(), weights.end());
    float sum = 0.0F;
    for (float& weight : weights) {
      weight = std::exp(weight - max);
      sum += weight;
    }
    std::vector<float> out(static_cast<size_t>(batch_.head_dim));
    for (int32_t key = 0; key < num_keys; ++key) {
      const int64_t place = Place(call, seq, kv_head, key);
      for (int32_t d = 0; d < batch_.head_dim; ++d) {
        out[static_cast<size_t>(d)] +=
            weights[static_cast<size_t>(key)] / sum * ToFloat(values[place + d]);
      }
    }
    auto* row = static_cast<uint16_t*>(call.out) +
                (int64_t{token} * batch_.num_heads + head) * batch_.head_dim;
    std::transform(out.begin(), out.end(), row, ToBf16);
  }

  PeerBatch batch_;
  std::vector<int32_t> query_start_;
  std::vector<int32_t> seq_lens_;
};

}  // namespace
}  // namespace quire::gpu

const char* QuirePeerName(int kind) { return kind < 2 ? "plain" : nullptr; }

int QuirePeerCreate(int /*kind*/, const quire::gpu::PeerBatch* batch, void** peer) {
  *peer = new quire::gpu::PlainPeer(*batch);
  return 0;
}

int QuirePeerRun(void* peer, const quire::gpu::PeerCall* call, void* /*stream*/) {
  static_cast<quire::gpu::PlainPeer*>(peer)->Run(*call);
  return 0;
}

void QuirePeerDestroy(void* peer) { delete static_cast<quire::gpu::PlainPeer*>(peer); }
