// LinearKernel is the linear layer as a template over a Simd struct and an Operand policy per
// weight type. linear.h has the contract.
//
// Structure: a task multiplies one block of rows of x by one group of panels. The range of k (the
// input dimension) is cut into pieces; a piece lies within one segment. For each piece and panel,
// tiles of up to kTileRows rows keep their sums in registers. Between the pieces of one segment the
// sums are kept in y. The sum of a finished segment is kept in `levels` until its partner in the
// tree of segments (linear.h) is finished. Pieces decide where sums are kept, not the order of
// additions. So the length of a piece may depend on cache sizes.
#ifndef QUIRE_KERNELS_CPU_LINEAR_KERNEL_INL_H_
#define QUIRE_KERNELS_CPU_LINEAR_KERNEL_INL_H_

#include <cstdint>

#include "kernels/api/dense.h"
#include "kernels/cpu/linear_groups.h"
#include "kernels/cpu/packed_linear.h"
#include "kernels/cpu/storage_types.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

// An Operand policy defines how weights of one format are multiplied by activations. Weight and
// Input are the types in memory. Step multiplies kGroup weights and inputs along k and adds the
// products to the accumulators; a segment's last step may have fewer (`count`). kPaddedInput tells
// whether the input's segments are padded to the length of the weights' segments.
template <typename S, typename W>
struct WidenedOperand {
  using Weight = W;
  using Input = float;
  static constexpr int kGroup = 1;
  static constexpr bool kPaddedInput = false;

  template <int kRows, int kVecs>
  static void Step(const Input* x,
                   int64_t x_stride,
                   const Weight* w,
                   int /*count*/,
                   typename S::Vec (&sum)[kRows][kVecs]) {
    typename S::Vec b[kVecs];
    for (int j = 0; j < kVecs; ++j) {
      b[j] = S::Load(w + j * S::kLanes);
    }
    for (int i = 0; i < kRows; ++i) {
      const typename S::Vec a = S::Broadcast(x[i * x_stride]);
      for (int j = 0; j < kVecs; ++j) {
        sum[i][j] = S::Fma(a, b[j], sum[i][j]);
      }
    }
  }
};

template <typename S>
struct WidenedPairOperand {
  using Weight = BFloat16;
  using Input = float;
  static constexpr int kGroup = 2;
  static constexpr bool kPaddedInput = false;

  template <int kRows, int kVecs>
  static void Step(const Input* x,
                   int64_t x_stride,
                   const Weight* w,
                   int count,
                   typename S::Vec (&sum)[kRows][kVecs]) {
    typename S::Vec even[kVecs];
    typename S::Vec odd[kVecs];
    for (int j = 0; j < kVecs; ++j) {
      S::LoadPairs(w + 2 * j * S::kLanes, &even[j], &odd[j]);
    }
    for (int i = 0; i < kRows; ++i) {
      const typename S::Vec a = S::Broadcast(x[i * x_stride]);
      for (int j = 0; j < kVecs; ++j) {
        sum[i][j] = S::Fma(a, even[j], sum[i][j]);
      }
    }
    if (count == 1) {
      return;
    }
    for (int i = 0; i < kRows; ++i) {
      const typename S::Vec a = S::Broadcast(x[i * x_stride + 1]);
      for (int j = 0; j < kVecs; ++j) {
        sum[i][j] = S::Fma(a, odd[j], sum[i][j]);
      }
    }
  }
};

// One piece of the range of k.
struct LinearPiece {
  int64_t x_begin = 0;  // index of the first k in a row of x
  int64_t w_begin = 0;  // index of the first k in a panel, whose segments are padded
  int64_t length = 0;
  bool starts = false;  // first piece of a segment: sums start at zero instead of from y
  bool ends = false;    // last piece of a segment
  int merges = 0;       // number of levels (sums of earlier segments) to add to the segment's sum
  bool last = false;    // last piece of the last segment
};

// One tile of rows in one panel.
template <typename Operand>
struct LinearTile {
  const typename Operand::Input* x = nullptr;
  int64_t x_stride = 0;
  const typename Operand::Weight* w = nullptr;  // weights of the piece's first step
  int64_t w_stride = 0;                         // elements from step to step
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t columns = 0;       // columns of y from the panel's first column to the last one of y
  float* levels = nullptr;   // this tile's level 0; level i keeps a sum of 2^i finished segments
  int64_t level_stride = 0;  // elements from level to level
  int64_t level_row = 0;     // elements from row to row of a level
  const float* bias = nullptr;
  // First weights to prefetch. Each step prefetches ahead_lines cache lines.
  const char* ahead = nullptr;
  int ahead_lines = 0;
  bool ahead_is_near = false;  // whether to prefetch into the first-level cache, not the second
};

// The kernel for one Simd struct. For one value of k, a panel has kPanelVecs vectors of weights.
template <typename S, int kPanelVecs>
struct LinearKernel {
  using Vec = typename S::Vec;
  static constexpr int kTileRows = 6;
  // Bytes of x that are assumed to stay in the cache while a task goes through its panels.
  static constexpr int64_t kCacheBytes = int64_t{384} * 1024;
  // Upper bound on the bytes of one piece of a panel, if several tiles read the piece in turn.
  static constexpr int64_t kPieceBytes = int64_t{64} * 1024;
  static constexpr int64_t kCacheLine = 64;

  template <int kRows, int kVecs, typename Operand>
  static void RunTile(const LinearPiece& piece, const LinearTile<Operand>& t) {
    Vec sum[kRows][kVecs];
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVecs; ++j) {
        sum[i][j] = piece.starts ? S::Zero() : LoadColumns(t, i, j);
      }
    }
    const typename Operand::Input* x = t.x;
    const typename Operand::Weight* w = t.w;
    const char* ahead = t.ahead;
    const int64_t full = piece.length / Operand::kGroup;
    for (int64_t step = 0; step < full; ++step) {
      for (int line = 0; line < t.ahead_lines; ++line) {
        if (t.ahead_is_near) {
          __builtin_prefetch(ahead, 0, 3);
        } else {
          __builtin_prefetch(ahead, 0, 2);  // into the second-level cache
        }
        ahead += kCacheLine;
      }
      Operand::template Step<kRows, kVecs>(x, t.x_stride, w, Operand::kGroup, sum);
      x += Operand::kGroup;
      w += t.w_stride;
    }
    if (piece.length % Operand::kGroup != 0) {
      Operand::template Step<kRows, kVecs>(x, t.x_stride, w, 1, sum);
    }
    Finish<kRows, kVecs>(piece, t, sum);
  }

  template <int kRows, int kVecs, typename Operand>
  static void Finish(const LinearPiece& piece,
                     const LinearTile<Operand>& t,
                     Vec (&sum)[kRows][kVecs]) {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVecs; ++j) {
        float* level = t.levels + i * t.level_row + j * S::kLanes;
        Vec v = sum[i][j];
        for (int merge = 0; merge < piece.merges; ++merge) {
          v = S::Add(S::Load(level + merge * t.level_stride), v);
        }
        if (piece.ends && !piece.last) {
          S::Store(level + piece.merges * t.level_stride, v);
          continue;
        }
        if (piece.last && t.bias != nullptr) {
          v = S::Add(v, LoadRow(t.bias, t.columns, j));
        }
        StoreColumns(t, i, j, v);
      }
    }
  }

  static Vec LoadRow(const float* row, int64_t columns, int j) {
    const int64_t left = columns - j * S::kLanes;
    return left >= S::kLanes ? S::Load(row + j * S::kLanes)
                             : S::LoadN(row + j * S::kLanes, static_cast<int>(left));
  }
  template <typename Tile>
  static Vec LoadColumns(const Tile& t, int i, int j) {
    return LoadRow(t.y + i * t.y_stride, t.columns, j);
  }
  template <typename Tile>
  static void StoreColumns(const Tile& t, int i, int j, Vec v) {
    float* row = t.y + i * t.y_stride + j * S::kLanes;
    const int64_t left = t.columns - j * S::kLanes;
    if (left >= S::kLanes) {
      S::Store(row, v);
    } else {
      S::StoreN(row, v, static_cast<int>(left));
    }
  }

  template <int kVecs, typename Operand>
  static void RunRows(int64_t rows, const LinearPiece& piece, const LinearTile<Operand>& t) {
    switch (rows) {
      case 1:
        return RunTile<1, kVecs>(piece, t);
      case 2:
        return RunTile<2, kVecs>(piece, t);
      case 3:
        return RunTile<3, kVecs>(piece, t);
      case 4:
        return RunTile<4, kVecs>(piece, t);
      case 5:
        return RunTile<5, kVecs>(piece, t);
      default:
        return RunTile<6, kVecs>(piece, t);
    }
  }

  template <typename Operand>
  static void RunTileOf(int64_t rows,
                        int64_t vecs,
                        const LinearPiece& piece,
                        const LinearTile<Operand>& t) {
    if constexpr (kPanelVecs > 2) {
      if (vecs == 3) {
        return RunRows<3>(rows, piece, t);
      }
      if (vecs == 4) {
        return RunRows<4>(rows, piece, t);
      }
    }
    return vecs == 2 ? RunRows<2>(rows, piece, t) : RunRows<1>(rows, piece, t);
  }

  template <typename Operand>
  struct Job {
    const CpuPackedLinear* weight = nullptr;
    const typename Operand::Input* x = nullptr;
    int64_t x_stride = 0;
    float* y = nullptr;
    int64_t num_rows = 0;
    int64_t rows_per_block = 0;
    int64_t piece_length = 0;
    bool pieces_outside = false;  // whether the loop over pieces is outside the loop over panels
  };

  struct Task {
    int64_t row_begin = 0;
    int64_t num_rows = 0;
    int64_t panel_begin = 0;
    int64_t panel_end = 0;
    float* levels = nullptr;
  };

  // Multiplies the task's rows by one piece of panel p. Spreads the rows evenly over tiles: 8 rows
  // are 4 + 4, not 6 + 2.
  template <typename Operand>
  static void RunPanel(const Job<Operand>& job,
                       const Task& task,
                       const LinearPiece& piece,
                       int64_t p) {
    const CpuPackedLinear& weight = *job.weight;
    const int64_t columns = weight.panel_columns(p);
    const int64_t first_column = p * weight.shape().panel;
    const int64_t group_columns = (task.panel_end - task.panel_begin) * weight.shape().panel;
    LinearTile<Operand> t;
    t.x_stride = job.x_stride;
    t.w = reinterpret_cast<const typename Operand::Weight*>(weight.panel_data(p)) +
          piece.w_begin * columns;
    t.w_stride = columns * Operand::kGroup;
    t.y_stride = weight.out_features();
    t.columns = weight.out_features() - first_column;
    t.level_row = group_columns;
    t.level_stride = task.num_rows * group_columns;
    t.bias = weight.bias() == nullptr ? nullptr : weight.bias() + first_column;
    const int64_t tiles = (task.num_rows + kTileRows - 1) / kTileRows;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t begin = task.num_rows * tile / tiles;
      const int64_t end = task.num_rows * (tile + 1) / tiles;
      const int64_t row = task.row_begin + begin;
      t.x = job.x + row * job.x_stride + piece.x_begin;
      t.y = job.y + row * t.y_stride + first_column;
      t.levels =
          task.levels + begin * group_columns + (p - task.panel_begin) * weight.shape().panel;
      ChooseAhead(job, piece, p, tile, tiles, t);
      RunTileOf(end - begin, columns / S::kLanes, piece, t);
    }
  }

  // Sets the weights that a tile prefetches. If only one tile reads a piece of a panel, the tile
  // prefetches weights of its own later steps. If several tiles read the piece, the first two or
  // four of them share the prefetch of the weights that are needed next. Sharing keeps memory busy
  // for longer.
  template <typename Operand>
  static void ChooseAhead(const Job<Operand>& job,
                          const LinearPiece& piece,
                          int64_t p,
                          int64_t tile,
                          int64_t tiles,
                          LinearTile<Operand>& t) {
    constexpr int64_t kLeadBytes = 3072;
    const char* w = reinterpret_cast<const char*>(t.w);
    const int64_t step_bytes = t.w_stride * int64_t{sizeof(typename Operand::Weight)};
    const int64_t step_lines = (step_bytes + kCacheLine - 1) / kCacheLine;
    const int64_t sharers = tiles < 4 ? (tiles < 2 ? 1 : 2) : 4;
    t.ahead_lines = static_cast<int>((step_lines + sharers - 1) / sharers);
    t.ahead_is_near = sharers == 1;
    if (t.ahead_is_near) {
      t.ahead = w + kLeadBytes;
    } else if (tile < sharers) {
      const int64_t steps = piece.length / Operand::kGroup;
      const char* next = job.pieces_outside
                             ? w + (reinterpret_cast<const char*>(job.weight->panel_data(p + 1)) -
                                    reinterpret_cast<const char*>(job.weight->panel_data(p)))
                             : w + steps * step_bytes;
      t.ahead = next + tile * steps * t.ahead_lines * kCacheLine;
    } else {
      t.ahead_lines = 0;
    }
  }

  template <typename Operand>
  static LinearPiece PieceAt(const Job<Operand>& job, int segment, int64_t begin) {
    const CpuPackedLinear& weight = *job.weight;
    const int64_t length = weight.segment_length();
    const int64_t left = length - begin;
    LinearPiece piece;
    piece.x_begin =
        segment * (Operand::kPaddedInput ? weight.padded_segment_length() : length) + begin;
    piece.w_begin = segment * weight.padded_segment_length() + begin;
    piece.length = left < job.piece_length ? left : job.piece_length;
    piece.starts = begin == 0;
    piece.ends = piece.length == left;
    piece.last = piece.ends && segment + 1 == weight.num_segments();
    if (piece.ends) {
      piece.merges = __builtin_ctz(~static_cast<unsigned>(segment));
    }
    return piece;
  }

  template <typename Operand>
  static void RunTask(const Job<Operand>& job, const Task& task) {
    if (job.pieces_outside) {
      ForEachPiece(job, [&](const LinearPiece& piece) {
        for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
          RunPanel(job, task, piece, p);
        }
      });
      return;
    }
    for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
      ForEachPiece(job, [&](const LinearPiece& piece) { RunPanel(job, task, piece, p); });
    }
  }

  template <typename Operand, typename Fn>
  static void ForEachPiece(const Job<Operand>& job, const Fn& fn) {
    const CpuPackedLinear& weight = *job.weight;
    for (int segment = 0; segment < weight.num_segments(); ++segment) {
      for (int64_t begin = 0; begin < weight.segment_length(); begin += job.piece_length) {
        fn(PieceAt(job, segment, begin));
      }
    }
  }

  // Chooses the sizes of blocks and pieces. With up to kTileRows rows a piece is a whole segment,
  // so that weights are read sequentially. A block has as many whole rows of x as fit in the cache,
  // but at least kFewRows. If fewer than kFewRows rows fit, and x has more rows than fit, the loop
  // over pieces is the outer loop: a task multiplies its rows by the same piece of all its panels,
  // then by the next piece.
  template <typename Operand>
  static void ChooseBlocks(Job<Operand>& job) {
    constexpr int64_t kFewRows = int64_t{16} * kTileRows;
    const int64_t length = job.weight->segment_length();
    const int64_t row_bytes = job.weight->in_features() * int64_t{sizeof(typename Operand::Input)};
    const int64_t rows_in_cache = kCacheBytes / row_bytes;
    job.pieces_outside = rows_in_cache < kFewRows && job.num_rows > rows_in_cache;
    job.rows_per_block = job.pieces_outside || rows_in_cache < kFewRows
                             ? kFewRows
                             : rows_in_cache / kTileRows * kTileRows;
    const int64_t column_bytes =
        job.weight->shape().panel * int64_t{sizeof(typename Operand::Weight)};
    const int64_t piece_length =
        kPieceBytes / column_bytes;  // even, so a multiple of kGroup (1 or 2)
    job.piece_length = job.num_rows > kTileRows && length > piece_length ? piece_length : length;
    if (job.rows_per_block > job.num_rows) {
      job.rows_per_block = job.num_rows;
    }
  }

  template <typename Operand>
  static void Run(const LinearParams& params,
                  const typename Operand::Input* x,
                  int64_t x_stride,
                  ThreadTeam& team) {
    if (params.num_tokens == 0) {
      return;
    }
    Job<Operand> job;
    job.weight = static_cast<const CpuPackedLinear*>(params.weight);
    job.x = x;
    job.x_stride = x_stride;
    job.y = static_cast<float*>(params.y);
    job.num_rows = params.num_tokens;
    ChooseBlocks(job);
    const int64_t panels = job.weight->num_panels();
    const int64_t blocks = (job.num_rows + job.rows_per_block - 1) / job.rows_per_block;
    const PanelGroups groups = ChoosePanelGroups(
        {.num_panels = panels,
         .num_blocks = blocks,
         .operations = 2 * job.num_rows * job.weight->in_features() * job.weight->out_features(),
         .partial_sum_bytes_per_panel = LevelBytes(job, job.rows_per_block, 1),
         .num_threads = team.num_threads()});
    team.ParallelFor(blocks * groups.num_groups, [&](int64_t index, int thread) {
      Task task;
      task.row_begin = index / groups.num_groups * job.rows_per_block;
      const int64_t rows_left = job.num_rows - task.row_begin;
      task.num_rows = rows_left < job.rows_per_block ? rows_left : job.rows_per_block;
      task.panel_begin = index % groups.num_groups * groups.panels_per_group;
      const int64_t panels_left = panels - task.panel_begin;
      task.panel_end =
          task.panel_begin +
          (panels_left < groups.panels_per_group ? panels_left : groups.panels_per_group);
      task.levels = LevelsOf(job, task, thread, team);
      RunTask(job, task);
    });
  }

  // Returns the bytes of a task's `levels` (sums of finished segments). A tree over eight segments
  // keeps three levels.
  template <typename Operand>
  static int64_t LevelBytes(const Job<Operand>& job, int64_t num_rows, int64_t num_panels) {
    constexpr int64_t kLevels = 3;
    return job.weight->num_segments() == 1 ? 0
                                           : kLevels * num_rows * num_panels *
                                                 job.weight->shape().panel * int64_t{sizeof(float)};
  }

  template <typename Operand>
  static float* LevelsOf(const Job<Operand>& job, const Task& task, int thread, ThreadTeam& team) {
    const int64_t bytes = LevelBytes(job, task.num_rows, task.panel_end - task.panel_begin);
    return bytes == 0 ? nullptr
                      : static_cast<float*>(team.Scratch(thread, static_cast<size_t>(bytes)));
  }

  static void RunWidened(const LinearParams& params, ThreadTeam& team) {
    const auto* weight = static_cast<const CpuPackedLinear*>(params.weight);
    const auto* x = static_cast<const float*>(params.x);
    const int64_t stride = weight->in_features();
    switch (weight->dtype()) {
      case DType::kF32:
        return Run<WidenedOperand<S, float>>(params, x, stride, team);
      case DType::kF16:
        return Run<WidenedOperand<S, Float16>>(params, x, stride, team);
      case DType::kBF16:
        return Run<WidenedPairOperand<S>>(params, x, stride, team);
      case DType::kF8E4M3:  // loaded weights never have these two types
      case DType::kInt8:
        break;
    }
  }
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_LINEAR_KERNEL_INL_H_
