// The linear layer with bf16 weights on the tile registers of AMX. See linear.h for the contract.
//
// A tile of sums has 16 rows of x and 16 columns of the weights; one instruction adds the products
// of 32 values of k to it. Four tiles of sums are computed at a time: 2 by 2, so that each operand
// is loaded for two of them, or, where 16 rows or fewer are left, 1 by 4, which reads a panel
// straight forwards.
//
// A task is a block of rows times a group of panels. k is cut into pieces, of which the rows of the
// block stay in the second-level cache while all panels meet them; meanwhile the weights of the
// next panel are fetched. Between pieces sums rest in memory, which changes nothing in them.
#include <immintrin.h>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/storage_types.h"

namespace quire {
namespace {

static_assert(AmxTile::kDepth == kAmxPanel.bf16_group);

constexpr int64_t kSumTiles = 4;
constexpr int64_t kUnitFloats = kSumTiles * AmxTile::kFloats;
constexpr int64_t kPanelTiles = kAmxPanel.panel / AmxTile::kColumns;

// What all tasks of one call share. Counts of k are in tiles.
struct Job {
  const CpuPackedLinear* weight = nullptr;
  const BFloat16* x = nullptr;  // [row tiles][depth][tile_rows][32]
  float* y = nullptr;
  int64_t num_rows = 0;
  int64_t tile_rows = 0;
  int64_t row_tiles = 0;
  int64_t segment_depth = 0;
  int64_t depth = 0;
  int64_t piece_depth = 0;
  int64_t row_tiles_per_block = 0;
  int64_t panels_per_group = 0;
  int64_t num_groups = 0;
  int64_t num_tasks = 0;
  int64_t unit_floats = 0;  // where one unit of sums rests: kSlots of them, or one

  bool has_pieces() const { return piece_depth < depth; }
};

struct Task {
  int64_t row_tile_begin = 0;
  int64_t row_tile_end = 0;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  float* rest = nullptr;
  const std::byte* next = nullptr;  // weights that the thread is likely to want afterwards
};

struct DepthRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Weights to bring closer, so many cache lines a step.
struct Ahead {
  const std::byte* at = nullptr;
  int64_t lines = 0;
  bool is_near = false;

  void Fetch() {
    for (int64_t line = 0; line < lines; ++line, at += AmxTile::kRowBytes) {
      if (is_near) {
        __builtin_prefetch(at, 0, 3);
      } else {
        __builtin_prefetch(at, 0, 2);  // more than the first-level cache holds
      }
    }
  }
};

// Where sums will be stored, so many rows a step: the lines come closer meanwhile, or the stores
// would wait for them.
struct Outputs {
  const float* at = nullptr;
  int64_t row_floats = 0;  // from row to row
  int64_t lines = 0;       // of a row
  int64_t rows = 0;        // left
  int64_t rows_per_step = 0;

  void Fetch() {
    for (int64_t i = 0; i < rows_per_step && rows > 0; ++i, --rows, at += row_floats) {
      for (int64_t line = 0; line < lines; ++line) {
        __builtin_prefetch(at + line * AmxTile::kColumns, 1, 3);
      }
    }
  }
};

// Four tiles of sums and what they are made of. The operands of k = 0, and the bytes from one tile
// of k to the next.
struct Unit {
  const BFloat16* x[2];
  const std::byte* w[kPanelTiles];
  int64_t x_step;
  int64_t w_step;
  int64_t w_stride;
  float* rest;  // the sums of an unfinished segment, then finished ones that wait for a partner
  int64_t row;
  int64_t column;
};

void LoadSums(const float* rest) {
  _tile_loadd(0, rest, AmxTile::kRowBytes);
  _tile_loadd(1, rest + AmxTile::kFloats, AmxTile::kRowBytes);
  _tile_loadd(2, rest + 2 * AmxTile::kFloats, AmxTile::kRowBytes);
  _tile_loadd(3, rest + 3 * AmxTile::kFloats, AmxTile::kRowBytes);
}

void ZeroSums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

void StoreSums(float* rest) {
  _tile_stored(0, rest, AmxTile::kRowBytes);
  _tile_stored(1, rest + AmxTile::kFloats, AmxTile::kRowBytes);
  _tile_stored(2, rest + 2 * AmxTile::kFloats, AmxTile::kRowBytes);
  _tile_stored(3, rest + 3 * AmxTile::kFloats, AmxTile::kRowBytes);
}

// Sums 0 and 1 are of the first rows, 2 and 3 of the second.
void Multiply2x2(const Unit& unit, DepthRange k, Ahead& ahead, Outputs outputs) {
  const BFloat16* x0 = unit.x[0] + k.begin * unit.x_step;
  const BFloat16* x1 = unit.x[1] + k.begin * unit.x_step;
  const std::byte* w0 = unit.w[0] + k.begin * unit.w_step;
  const std::byte* w1 = unit.w[1] + k.begin * unit.w_step;
  for (int64_t step = k.begin; step < k.end; ++step) {
    ahead.Fetch();
    outputs.Fetch();
    KeepVectorUnitAwake();
    _tile_loadd(6, w0, unit.w_stride);
    _tile_loadd(4, x0, AmxTile::kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1, unit.w_stride);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x1, AmxTile::kRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    x0 += unit.x_step;
    x1 += unit.x_step;
    w0 += unit.w_step;
    w1 += unit.w_step;
  }
}

void Multiply1x4(const Unit& unit, DepthRange k, Ahead& ahead, Outputs outputs) {
  const BFloat16* x = unit.x[0] + k.begin * unit.x_step;
  int64_t at = k.begin * unit.w_step;
  for (int64_t step = k.begin; step < k.end; ++step) {
    ahead.Fetch();
    outputs.Fetch();
    KeepVectorUnitAwake();
    _tile_loadd(4, x, AmxTile::kRowBytes);
    _tile_loadd(6, unit.w[0] + at, unit.w_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, unit.w[1] + at, unit.w_stride);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, unit.w[2] + at, unit.w_stride);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, unit.w[3] + at, unit.w_stride);
    _tile_dpbf16ps(3, 4, 7);
    x += unit.x_step;
    at += unit.w_step;
  }
}

// Adds finished segments up as far as the tree allows; the last one ends in y.
template <int kRowTiles>
void FinishSegment(const Job& job, const Unit& unit, int64_t segment) {
  const CpuPackedLinear& weight = *job.weight;
  const bool is_last = segment + 1 == weight.num_segments();
  const int merges = __builtin_ctz(~static_cast<unsigned>(segment));
  for (int64_t tile = 0; tile < kSumTiles; ++tile) {
    const int64_t row = unit.row + (kRowTiles == 2 ? tile / 2 : 0) * job.tile_rows;
    const int64_t column = unit.column + (kRowTiles == 2 ? tile % 2 : tile) * AmxTile::kColumns;
    const int64_t columns = weight.out_features() - column;
    if (columns <= 0) {
      continue;
    }
    const auto mask =
        static_cast<__mmask16>(columns < AmxTile::kColumns ? (1U << columns) - 1 : 0xFFFF);
    const __m512 bias = weight.bias() == nullptr
                            ? _mm512_setzero_ps()
                            : _mm512_maskz_loadu_ps(mask, weight.bias() + column);
    for (int64_t r = 0; r < job.tile_rows && row + r < job.num_rows; ++r) {
      float* at = unit.rest + tile * AmxTile::kFloats + r * AmxTile::kColumns;
      __m512 sum = _mm512_load_ps(at);
      for (int merge = 0; merge < merges; ++merge) {
        at += kUnitFloats;
        sum = _mm512_add_ps(_mm512_load_ps(at), sum);
      }
      if (!is_last) {
        _mm512_store_ps(at + kUnitFloats, sum);
        continue;
      }
      if (weight.bias() != nullptr) {
        sum = _mm512_add_ps(sum, bias);
      }
      _mm512_mask_storeu_ps(job.y + (row + r) * weight.out_features() + column, mask, sum);
    }
  }
}

// Of a unit whose last sums take so many more steps.
template <int kRowTiles>
Outputs OutputsOf(const Job& job, const Unit& unit, int64_t steps) {
  const int64_t row_floats = job.weight->out_features();
  const int64_t most = kRowTiles * job.tile_rows;
  const int64_t left = job.num_rows - unit.row;
  const int64_t rows = left < most ? left : most;
  return {.at = job.y + unit.row * row_floats + unit.column,
          .row_floats = row_floats,
          .lines = kSumTiles / kRowTiles,
          .rows = rows,
          .rows_per_step = (rows + steps - 1) / steps};
}

template <int kRowTiles>
void RunUnit(const Job& job, const Unit& unit, DepthRange piece, Ahead& ahead) {
  for (int64_t k = piece.begin; k < piece.end;) {
    const int64_t segment = k / job.segment_depth;
    const int64_t segment_end = (segment + 1) * job.segment_depth;
    const int64_t end = segment_end < piece.end ? segment_end : piece.end;
    if (k % job.segment_depth == 0) {
      ZeroSums();
    } else {
      LoadSums(unit.rest);
    }
    const Outputs outputs = end == job.depth ? OutputsOf<kRowTiles>(job, unit, end - k) : Outputs();
    if constexpr (kRowTiles == 2) {
      Multiply2x2(unit, {k, end}, ahead, outputs);
    } else {
      Multiply1x4(unit, {k, end}, ahead, outputs);
    }
    StoreSums(unit.rest);
    if (end == segment_end) {
      FinishSegment<kRowTiles>(job, unit, segment);
    }
    k = end;
  }
}

// A lone tile of rows reads its weights a little ahead of itself. Of several units over one piece
// each fetches a part of the weights that come next, so that memory is busy during all of them.
Ahead ChooseAhead(const Job& job, const Task& task, DepthRange piece, int64_t p, int64_t units) {
  constexpr int64_t kLeadBytes = 8192;
  const CpuPackedLinear& weight = *job.weight;
  const int64_t columns = weight.panel_columns(p);
  const int64_t step_bytes = columns * AmxTile::kRowBytes;
  const std::byte* w = weight.panel_data(p) + piece.begin * step_bytes;
  if (task.row_tile_end - task.row_tile_begin == 1) {
    return {w + kLeadBytes, columns, /*is_near=*/true};
  }
  const std::byte* next = task.next;
  if (p + 1 < task.panel_end) {
    next =
        weight.panel_data(p + 1) + piece.begin * weight.panel_columns(p + 1) * AmxTile::kRowBytes;
  } else if (piece.end < job.depth) {
    next = weight.panel_data(task.panel_begin) +
           piece.end * weight.panel_columns(task.panel_begin) * AmxTile::kRowBytes;
  }
  return {next, next == nullptr ? 0 : (columns + units - 1) / units};
}

void RunPanel(const Job& job, const Task& task, DepthRange piece, int64_t p) {
  const CpuPackedLinear& weight = *job.weight;
  const int64_t columns = weight.panel_columns(p);
  const int64_t column_tiles = columns / AmxTile::kColumns;
  const int64_t row_tiles = task.row_tile_end - task.row_tile_begin;
  const int64_t halves = (column_tiles + 1) / 2;
  Ahead ahead = ChooseAhead(job, task, piece, p, row_tiles / 2 * halves + row_tiles % 2);
  Unit unit;
  unit.x_step = job.tile_rows * AmxTile::kDepth;
  unit.w_step = columns * AmxTile::kRowBytes;
  unit.w_stride = columns * int64_t{2 * sizeof(BFloat16)};
  const int64_t first_rest = job.has_pieces() ? (p - task.panel_begin) * row_tiles : 0;
  for (int64_t i = 0; i < row_tiles;) {
    const int64_t row_tile = task.row_tile_begin + i;
    const bool is_pair = i + 1 < row_tiles;
    unit.row = row_tile * job.tile_rows;
    unit.x[0] = job.x + row_tile * job.depth * unit.x_step;
    unit.x[1] = unit.x[0] + job.depth * unit.x_step;
    for (int64_t half = 0; half < (is_pair ? halves : 1); ++half, ++i) {
      const int64_t first_tile = 2 * half;
      unit.column = p * weight.shape().panel + first_tile * AmxTile::kColumns;
      for (int64_t t = 0; t < kPanelTiles; ++t) {
        // Columns beyond the panel are the first once more, and are not stored.
        const int64_t tile = first_tile + t < column_tiles ? first_tile + t : 0;
        unit.w[t] = weight.panel_data(p) + tile * AmxTile::kRowBytes;
      }
      unit.rest = task.rest + (job.has_pieces() ? first_rest + i : 0) * job.unit_floats;
      if (is_pair) {
        RunUnit<2>(job, unit, piece, ahead);
      } else {
        RunUnit<1>(job, unit, piece, ahead);
      }
    }
    i += is_pair && halves == 1 ? 1 : 0;
  }
}

// Rows and k of a piece that stay in the second-level cache; weights of a panel likewise.
void ChooseBlocks(Job& job) {
  constexpr int64_t kMaxRowTiles = 32;
  constexpr int64_t kCacheBytes = int64_t{1} << 20;
  constexpr int64_t kMaxPieceDepth = 64;
  job.row_tiles_per_block = job.row_tiles < kMaxRowTiles ? job.row_tiles : kMaxRowTiles;
  job.piece_depth = job.depth;
  if (job.row_tiles == 1) {
    return;
  }
  int64_t most = kCacheBytes / (job.row_tiles_per_block * AmxTile::kRows * AmxTile::kRowBytes);
  most = most < kMaxPieceDepth ? most : kMaxPieceDepth;
  const int64_t pieces = (job.depth + most - 1) / most;
  job.piece_depth = (job.depth + pieces - 1) / pieces;
}

// Tasks a few times as many as threads, so that a thread that loses its core holds up little; but
// none too small to be worth handing over.
void ChooseGroups(Job& job, int num_threads) {
  constexpr int64_t kTasksPerThread = 4;
  constexpr int64_t kMinTaskOperations = 200'000;
  const int64_t panels = job.weight->num_panels();
  const int64_t blocks = (job.row_tiles + job.row_tiles_per_block - 1) / job.row_tiles_per_block;
  int64_t groups = (num_threads * kTasksPerThread + blocks - 1) / blocks;
  const int64_t operations =
      2 * job.num_rows * job.weight->in_features() * job.weight->out_features();
  const int64_t worthwhile = operations / kMinTaskOperations / blocks;
  groups = groups < worthwhile ? groups : worthwhile;
  groups = groups < panels ? groups : panels;
  groups = groups < 1 || num_threads == 1 ? 1 : groups;
  job.panels_per_group = (panels + groups - 1) / groups;
  job.num_groups = (panels + job.panels_per_group - 1) / job.panels_per_group;
  job.num_tasks = blocks * job.num_groups;
}

Task TaskAt(const Job& job, int64_t index, int thread, ThreadTeam& team) {
  const int64_t panels = job.weight->num_panels();
  Task task;
  task.row_tile_begin = index / job.num_groups * job.row_tiles_per_block;
  const int64_t row_tile_end = task.row_tile_begin + job.row_tiles_per_block;
  task.row_tile_end = row_tile_end < job.row_tiles ? row_tile_end : job.row_tiles;
  task.panel_begin = index % job.num_groups * job.panels_per_group;
  const int64_t panel_end = task.panel_begin + job.panels_per_group;
  task.panel_end = panel_end < panels ? panel_end : panels;
  const int64_t next = index + team.num_threads();
  if (next < job.num_tasks) {
    task.next = job.weight->panel_data(next % job.num_groups * job.panels_per_group);
  }
  const int64_t units = job.has_pieces() ? (task.panel_end - task.panel_begin) *
                                               (task.row_tile_end - task.row_tile_begin)
                                         : 1;
  task.rest = static_cast<float*>(
      team.Scratch(thread, static_cast<size_t>(units * job.unit_floats) * sizeof(float)));
  return task;
}

// 32 values, or the first n and zeros.
void RoundLine(const float* from, int64_t n, BFloat16* to) {
  const auto mask = static_cast<uint32_t>((uint64_t{1} << n) - 1);
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), from + 16);
  _mm512_store_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}

// A row of x to its lines, which are so many elements apart.
void RoundRow(const CpuPackedLinear& weight, const float* x, int64_t step, BFloat16* to) {
  const int64_t length = weight.segment_length();
  for (int segment = 0; segment < weight.num_segments(); ++segment, x += length) {
    for (int64_t k = 0; k < length; k += AmxTile::kDepth, to += step) {
      RoundLine(x + k, length - k < AmxTile::kDepth ? length - k : AmxTile::kDepth, to);
    }
  }
}

// x rounded to bf16 (to nearest even), in tiles. Rows that the last tile has too many stay as they
// are: they meet nothing but their own sums.
const BFloat16* RoundInput(const LinearParams& params, const Job& job, ThreadTeam& team) {
  const auto* x = static_cast<const float*>(params.x);
  const int64_t step = job.tile_rows * AmxTile::kDepth;
  const int64_t elements = job.row_tiles * job.depth * step;
  auto* rounded =
      static_cast<BFloat16*>(team.SharedScratch(static_cast<size_t>(elements) * sizeof(BFloat16)));
  team.ParallelFor(job.row_tiles, [&](int64_t row_tile, int /*thread*/) {
    const int64_t begin = row_tile * job.tile_rows;
    for (int64_t r = 0; r < job.tile_rows && begin + r < job.num_rows; ++r) {
      RoundRow(*job.weight,
               x + (begin + r) * job.weight->in_features(),
               step,
               rounded + row_tile * job.depth * step + r * AmxTile::kDepth);
    }
  });
  return rounded;
}

}  // namespace

void LinearAmx(const LinearParams& params, ThreadTeam& team) {
  const auto& weight = *static_cast<const CpuPackedLinear*>(params.weight);
  if (weight.dtype() != DType::kBF16) {
    return LinearAvx512(params, team);
  }
  constexpr int64_t kSlots = 4;  // an unfinished segment, and three levels of a tree over eight
  Job job;
  job.weight = &weight;
  job.y = static_cast<float*>(params.y);
  job.num_rows = params.num_tokens;
  job.tile_rows = job.num_rows < AmxTile::kRows ? job.num_rows : AmxTile::kRows;
  job.row_tiles = (job.num_rows + job.tile_rows - 1) / job.tile_rows;
  job.segment_depth = weight.padded_segment_length() / AmxTile::kDepth;
  job.depth = weight.num_segments() * job.segment_depth;
  job.unit_floats = (weight.num_segments() > 1 ? kSlots : 1) * kUnitFloats;
  ChooseBlocks(job);
  ChooseGroups(job, team.num_threads());
  job.x = RoundInput(params, job, team);
  team.ParallelFor(job.num_tasks, [&](int64_t index, int thread) {
    const TileRegisters registers(job.tile_rows);
    const Task task = TaskAt(job, index, thread, team);
    for (int64_t k = 0; k < job.depth; k += job.piece_depth) {
      const int64_t end = k + job.piece_depth;
      const DepthRange piece = {k, end < job.depth ? end : job.depth};
      for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
        RunPanel(job, task, piece, p);
      }
    }
  });
}

}  // namespace quire
