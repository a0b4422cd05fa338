#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/paged_attention_pairs.inl.h"
#include "kernels/cpu/paged_attention_softmax.inl.h"
#include "kernels/cpu/paged_attention_tile.inl.h"
#include "kernels/cpu/paged_attention_tile_order.inl.h"
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/storage_types.h"
#include "tests/bench/contiguous_attention.h"

namespace quire {
namespace {

using Simd = SimdAvx512;
constexpr int32_t kLanes = Simd::kLanes;
constexpr int64_t kPieceBytes = 16;  // of a key, which turn together
constexpr int64_t kMaxGroups = 4;    // of kLanes keys, whose scores are computed together

// One piece of each of 16 keys, so many bytes apart, becomes its four units of 32 bits, each for
// all keys side by side.
inline void TurnPieces(const char* from, int64_t key_bytes, __m512i* to) {
  __m512i rows[4];  // rows[r]: the pieces of keys r, 4 + r, 8 + r and 12 + r
  QUIRE_UNROLL
  for (int64_t r = 0; r < 4; ++r) {
    const auto piece = [&](int64_t key) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + key * key_bytes));
    };
    const __m512i first = _mm512_zextsi128_si512(piece(r));
    const __m512i two = _mm512_mask_broadcast_i32x4(first, 0x00F0, piece(4 + r));
    const __m512i three = _mm512_mask_broadcast_i32x4(two, 0x0F00, piece(8 + r));
    rows[r] = _mm512_mask_broadcast_i32x4(three, 0xF000, piece(12 + r));
  }
  const __m512i low01 = _mm512_unpacklo_epi32(rows[0], rows[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i high01 = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i high23 = _mm512_unpackhi_epi32(rows[2], rows[3]);
  _mm512_storeu_si512(to, _mm512_unpacklo_epi64(low01, low23));
  _mm512_storeu_si512(to + 1, _mm512_unpackhi_epi64(low01, low23));
  _mm512_storeu_si512(to + 2, _mm512_unpacklo_epi64(high01, high23));
  _mm512_storeu_si512(to + 3, _mm512_unpackhi_epi64(high01, high23));
}

// Keys or values of a sequence.
struct Tokens {
  const char* first;
  int64_t token_bytes;
  int64_t head_bytes;  // from a KV head to the next one

  const char* At(int64_t token, int64_t kv_head) const {
    return first + token * token_bytes + kv_head * head_bytes;
  }
};

// NextLine prefetches one cache line to the second-level cache. The lines come in address order:
// bytes_of_token bytes of each token, and tokens are token_bytes apart.
struct Fetch {
  const char* token;
  int64_t bytes_of_token;
  int64_t token_bytes;
  int64_t at = 0;

  void NextLine() {
    __builtin_prefetch(token + at, 0, 2);
    at += kCacheLine;
    if (at >= bytes_of_token) {
      at = 0;
      token += token_bytes;
    }
  }
};

// KV heads and chunks of a sequence. A row is a query head that reads one of them.
struct Task {
  int32_t seq;
  int32_t first_kv_head;
  int32_t num_kv_heads;
  int32_t first_chunk;
  int32_t end_chunk;
};

// Softmax state and values of each (sequence, chunk, query head), until the chunks are merged.
struct Partials {
  SoftmaxStats* stats;
  float* values;  // head_dim each
  int64_t chunks_per_seq;
  int64_t num_heads;

  int64_t Index(int64_t seq, int64_t chunk, int64_t head) const {
    return (seq * chunks_per_seq + chunk) * num_heads + head;
  }
};

// A thread's memory.
struct TaskMemory {
  float* q;       // [rows, dims], tiles of rows as PackQuery makes them
  float* scores;  // [rows, kScoreStride]
  float* turned;  // [kMaxGroups, dims, kLanes]

  TaskMemory(void* memory, int64_t rows, int64_t dims) : q(static_cast<float*>(memory)) {
    scores = q + rows * dims;
    turned = scores + rows * kScoreStride;
  }
  static size_t Bytes(int64_t rows, int64_t dims) {
    return static_cast<size_t>(rows * (dims + kScoreStride) + kMaxGroups * kLanes * dims) *
           sizeof(float);
  }
};

template <typename P, typename T>
class TaskAttention {
  using Panel = typename P::Panel;
  using Term = typename P::Term;
  static constexpr auto kElementBytes = int64_t{sizeof(T)};

 public:
  TaskAttention(const ContiguousAttentionParams& params,
                const Task& task,
                const Partials& partials,
                void* memory)
      : p_(params),
        task_(task),
        partials_(partials),
        group_(params.num_heads / params.num_kv_heads),
        memory_(memory, int64_t{task.num_kv_heads} * group_, params.head_dim),
        keys_(TokensFrom(params.keys[task.seq])),
        values_(TokensFrom(params.values[task.seq])),
        key_bytes_(params.head_dim * kElementBytes) {
    turned_.key_dim_stride = kLanes;
    for (int32_t group = 0; group < turned_.kGroups; ++group) {
      turned_.keys[group] = reinterpret_cast<Panel*>(memory_.turned) +
                            group % kMaxGroups * (key_bytes_ / int64_t{sizeof(Panel)}) * kLanes;
      turned_.prefetch[group] = nullptr;
    }
  }

  void Run() {
    const float* q = p_.q + task_.seq * p_.q_row_stride + FirstHead() * p_.head_dim;
    ForEachTile([&]<int kRows>(int32_t /*kv_head*/, int32_t first_row) {
      for (int r = 0; r < kRows; ++r) {
        const float* row = q + int64_t{first_row + r} * p_.head_dim;
        P::PackQuery(row, p_.head_dim, r, kRows, QueriesOf(first_row));
      }
    });
    for (int32_t chunk = task_.first_chunk; chunk < task_.end_chunk; ++chunk) {
      const int32_t left = p_.seq_lens[task_.seq] - chunk * kAttentionChunkTokens;
      AttendChunk(chunk, left < kAttentionChunkTokens ? left : kAttentionChunkTokens);
    }
  }

 private:
  int64_t FirstHead() const { return int64_t{task_.first_kv_head} * group_; }
  Tokens TokensFrom(const void* first) const {
    return {static_cast<const char*>(first),
            p_.token_stride * kElementBytes,
            p_.head_stride * kElementBytes};
  }
  Term* QueriesOf(int64_t first_row) const {
    return reinterpret_cast<Term*>(memory_.q) + first_row * p_.head_dim;
  }
  float* ScoresOf(int64_t row) const { return memory_.scores + row * kScoreStride; }

  // Calls fn<rows>(KV head, first row) for each tile of rows that read one KV head.
  template <typename Fn>
  void ForEachTile(const Fn& fn) {
    for (int32_t i = 0; i < task_.num_kv_heads; ++i) {
      for (int32_t row = 0; row < group_; row += kTileRows) {
        CallWithRows(group_ - row, fn, task_.first_kv_head + i, i * group_ + row);
      }
    }
  }
  template <typename Fn>
  static void CallWithRows(int32_t rows, const Fn& fn, int32_t kv_head, int32_t first_row) {
    switch (rows) {
      case 1:
        return fn.template operator()<1>(kv_head, first_row);
      case 2:
        return fn.template operator()<2>(kv_head, first_row);
      case 3:
        return fn.template operator()<3>(kv_head, first_row);
      case 4:
        return fn.template operator()<4>(kv_head, first_row);
      case 5:
        return fn.template operator()<5>(kv_head, first_row);
      default:
        return fn.template operator()<kTileRows>(kv_head, first_row);
    }
  }

  void AttendChunk(int32_t chunk, int32_t count) {
    const int64_t token = int64_t{chunk} * kAttentionChunkTokens;
    const SlotRange slots = {0, count};
    ScoreChunk(token, (count + kLanes - 1) / kLanes);
    ForEachTile([&]<int kRows>(int32_t kv_head, int32_t first_row) {
      const int64_t index = partials_.Index(task_.seq, chunk, FirstHead() + first_row);
      for (int r = 0; r < kRows; ++r) {
        float* scores = ScoresOf(first_row + r);
        if constexpr (P::kRoundsWeights) {
          partials_.stats[index + r] = P::Softmax(scores, slots, p_.scale);
        } else {
          partials_.stats[index + r] = SoftmaxOfRow<Simd>(scores, slots, p_.scale);
        }
      }
      const bool is_last = chunk + 1 == task_.end_chunk;
      const int64_t next = is_last ? token : token + kAttentionChunkTokens;
      Fetch next_keys = FetchShare(keys_, next, kAttentionChunkTokens, kv_head);
      if (is_last) {
        next_keys.token_bytes = 0;  // the first ones again, which are there
      }
      const typename P::ProductScope scope;
      WeighValues<kRows>({values_.At(token, kv_head), ScoresOf(first_row), slots, next_keys},
                         partials_.values + index * p_.head_dim);
    });
  }

  // The KV head's share of the keys or values of `count` tokens, for all heads of the task.
  Fetch FetchShare(const Tokens& tokens, int64_t token, int32_t count, int32_t kv_head) const {
    const int64_t share = int64_t{count} / task_.num_kv_heads;
    return {tokens.At(token + (kv_head - task_.first_kv_head) * share, task_.first_kv_head),
            task_.num_kv_heads * key_bytes_,
            tokens.token_bytes};
  }

  // Scores up to kMaxGroups groups of kLanes keys at a time for all heads, so that the turned keys
  // stay in the first-level cache.
  void ScoreChunk(int64_t token, int32_t num_groups) {
    const typename P::ProductScope scope;
    constexpr auto kGroups = static_cast<int32_t>(kMaxGroups);
    for (int32_t group = 0; group < num_groups; group += kGroups) {
      const int32_t end = group + kGroups < num_groups ? group + kGroups : num_groups;
      ForEachTile([&]<int kRows>(int32_t kv_head, int32_t first_row) {
        if (first_row % group_ == 0) {
          TurnGroups(token, kv_head, group, end);
        }
        ScoreGroups<P, Panel, kRows, false>(
            turned_, group, end, QueriesOf(first_row), p_.head_dim, ScoresOf(first_row));
      });
    }
  }

  // Turns the groups' keys. Each piece also prefetches a share of the values, and of the next
  // group's keys into the first-level cache.
  void TurnGroups(int64_t token, int32_t kv_head, int32_t group, int32_t group_end) {
    constexpr int64_t kPiecesOfLine = kCacheLine / kPieceBytes;
    constexpr int64_t kLinesOfPiece = kLanes / kPiecesOfLine;
    Fetch values =
        FetchShare(values_, token + int64_t{group} * kLanes, (group_end - group) * kLanes, kv_head);
    for (; group < group_end; ++group) {
      const char* keys = keys_.At(token + int64_t{group} * kLanes, kv_head);
      auto* to = reinterpret_cast<__m512i*>(const_cast<Panel*>(turned_.keys[group]));
      for (int64_t piece = 0; piece < key_bytes_ / kPieceBytes; ++piece, to += 4) {
        TurnPieces(keys + piece * kPieceBytes, keys_.token_bytes, to);
        const int64_t first = kLanes + piece % kPiecesOfLine * kLinesOfPiece;
        for (int64_t i = first; i < first + kLinesOfPiece; ++i) {
          values.NextLine();
          __builtin_prefetch(keys + i * keys_.token_bytes + piece / kPiecesOfLine * kCacheLine);
        }
      }
    }
  }

  struct Values {
    const char* first;
    float* weights;  // scores that softmax has been through; used up
    SlotRange slots;
    Fetch fetch;  // beside them
  };

  template <int kRows>
  void WeighValues(Values values, float* out) {
    constexpr int kMost = P::template kVecs<kRows> < 4 ? P::template kVecs<kRows> : 4;
    const Term* weights[kRows];
    for (int r = 0; r < kRows; ++r) {
      weights[r] = P::PackWeights(values.weights + int64_t{r} * kScoreStride, values.slots);
    }
    int32_t dim = 0;
    for (; p_.head_dim - dim >= kMost * kLanes; dim += kMost * kLanes) {
      WeighDims<kRows, kMost, false>(&values, weights, dim, out);
    }
    for (; p_.head_dim - dim >= kLanes; dim += kLanes) {
      WeighDims<kRows, 1, false>(&values, weights, dim, out);
    }
    if (dim < p_.head_dim) {
      WeighDims<kRows, 1, true>(&values, weights, dim, out);
    }
  }

  // Computes out[r][dim] for the dims of kVecs vectors, as ValueTile (paged_attention_tile.inl.h)
  // of one segment. Unlike ValueTile it prefetches values to the first-level cache, because values
  // of neighbouring tokens are a stride apart.
  template <int kRows, int kVecs, bool kPartial>
  void WeighDims(Values* values, const Term* const (&weights)[kRows], int32_t dim, float* out) {
    constexpr int64_t kAhead = 16;  // tokens
    const int32_t lanes = p_.head_dim - dim;
    typename P::Sum sums[kRows][kVecs];
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        sums[r][v] = P::Empty();
      }
    }
    Fetch fetch = values->fetch;
    const SlotRange slots = values->slots;
    const T* at = reinterpret_cast<const T*>(values->first) + dim;
    for (int32_t slot = 0; slot < slots.end; slot += P::kGroup) {
      typename P::Operand operands[kVecs];
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        operands[v] = P::template LoadValues<kPartial>(at + v * kLanes, p_.token_stride, lanes);
      }
      QUIRE_UNROLL
      for (int row = 0; row < P::kGroup; ++row, at += p_.token_stride) {
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; v += kCacheLine / kVecBytes<Simd, T>) {
          __builtin_prefetch(at + kAhead * p_.token_stride + v * kLanes);
          fetch.NextLine();
        }
      }
      // A slot behind the last one takes no part, not even as a zero.
      const bool all = slot + P::kGroup <= slots.end;
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Term weight = weights[r][slot / P::kGroup];
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          sums[r][v] = all ? P::Multiply(weight, operands[v], sums[r][v])
                           : P::MultiplyPart(weight, operands[v], slot, slots, sums[r][v]);
        }
      }
      FoldSums<P>(slot, sums);
    }
    values->fetch = fetch;
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        float* to = out + int64_t{r} * p_.head_dim + dim + int64_t{v} * kLanes;
        kPartial ? Simd::StoreN(to, P::Total(sums[r][v]), lanes)
                 : Simd::Store(to, P::Total(sums[r][v]));
      }
    }
  }

  const ContiguousAttentionParams& p_;
  const Task task_;
  const Partials partials_;
  const int32_t group_;  // rows of a KV head
  const TaskMemory memory_;
  const Tokens keys_;
  const Tokens values_;
  const int64_t key_bytes_;
  ChunkView<Simd, Panel> turned_;
};

int32_t ChunksOf(int32_t seq_len) {
  return (seq_len + kAttentionChunkTokens - 1) / kAttentionChunkTokens;
}

// Neighbouring KV heads are read together. A task has at most kLanes heads, because each head
// prefetches its share of a group of kLanes keys.
int32_t HeadsOfTask(const ContiguousAttentionParams& p) {
  int32_t heads = 1;
  while (p.head_stride < p.token_stride && heads < kLanes && p.num_kv_heads % (2 * heads) == 0) {
    heads *= 2;
  }
  return heads;
}

void MergeChunks(const ContiguousAttentionParams& p, const Partials& partials, int32_t seq) {
  for (int64_t head = 0; head < p.num_heads; ++head) {
    float* out = p.out + (int64_t{seq} * p.num_heads + head) * p.head_dim;
    SoftmaxStats stats;
    for (int32_t chunk = 0; chunk < ChunksOf(p.seq_lens[seq]); ++chunk) {
      const int64_t index = partials.Index(seq, chunk, head);
      MergeRow<Simd>(
          partials.stats[index], partials.values + index * p.head_dim, p.head_dim, &stats, out);
    }
    FinishRow<Simd>(stats, out, p.head_dim, out);
  }
}

template <typename P, typename T>
void Attend(const ContiguousAttentionParams& p, ThreadTeam& team) {
  constexpr int32_t kTasksPerThread = 8;
  int32_t most_chunks = 0;
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    const int32_t chunks = ChunksOf(p.seq_lens[seq]);
    most_chunks = chunks > most_chunks ? chunks : most_chunks;
  }
  Partials partials = {.chunks_per_seq = most_chunks, .num_heads = p.num_heads};
  const int64_t num_partials = partials.Index(p.num_seqs, 0, 0);
  partials.values = static_cast<float*>(team.SharedScratch(
      static_cast<size_t>(num_partials * (p.head_dim + int64_t{2})) * sizeof(float)));
  partials.stats = reinterpret_cast<SoftmaxStats*>(partials.values + num_partials * p.head_dim);

  const int32_t heads = HeadsOfTask(p);
  const int32_t head_tasks = p.num_kv_heads / heads;
  const int32_t wanted = kTasksPerThread * team.num_threads() / (p.num_seqs * head_tasks) + 1;
  const int32_t parts = wanted < most_chunks ? wanted : most_chunks;
  const size_t bytes =
      TaskMemory::Bytes(int64_t{heads} * (p.num_heads / p.num_kv_heads), p.head_dim);
  team.ParallelFor(int64_t{p.num_seqs} * head_tasks * parts, [&](int64_t index, int thread) {
    const auto part = static_cast<int32_t>(index % parts);
    const auto head_task = static_cast<int32_t>(index / parts % head_tasks);
    const auto seq = static_cast<int32_t>(index / parts / head_tasks);
    const int64_t chunks = ChunksOf(p.seq_lens[seq]);
    const Task task = {.seq = seq,
                       .first_kv_head = head_task * heads,
                       .num_kv_heads = heads,
                       .first_chunk = static_cast<int32_t>(chunks * part / parts),
                       .end_chunk = static_cast<int32_t>(chunks * (part + 1) / parts)};
    TaskAttention<P, T>(p, task, partials, team.Scratch(thread, bytes)).Run();
  });
  team.ParallelFor(p.num_seqs, [&](int64_t seq, int /*thread*/) {
    MergeChunks(p, partials, static_cast<int32_t>(seq));
  });
}

}  // namespace

void ContiguousAttentionF32(const ContiguousAttentionParams& params, ThreadTeam& team) {
  Attend<WidenedProducts<Simd>, float>(params, team);
}

void ContiguousAttentionPairs(const ContiguousAttentionParams& params, ThreadTeam& team) {
  Attend<PairProducts, BFloat16>(params, team);
}

void ContiguousAttentionTileOrder(const ContiguousAttentionParams& params, ThreadTeam& team) {
  Attend<TileOrderProducts, BFloat16>(params, team);
}

}  // namespace quire
