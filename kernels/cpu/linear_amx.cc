// The linear layer with bf16 weights on the tile registers of AMX. See linear.h for the contract.
//
// A tile of sums has 16 rows of x and 16 columns of the weights; one instruction adds the products
// of 32 values of k to the tile. Four tiles of sums, a unit, are computed at a time: 2 by 2, so
// that each loaded operand serves two tiles, or 1 by 4 if at most 16 rows are left. A panel has 16
// columns, and four panels are a strip.
//
// A task multiplies a block of rows by a group of strips. The rows of the block stay in the
// second-level cache for all strips; if the rows are too long for the cache, k is cut into pieces.
// While a strip is computed, the weights of the next strip are prefetched. Between pieces the sums
// are kept in memory in fp32, so that the cuts change no bit.
//
// In MlpAmx a unit has some columns of gate and the same columns of up. The sums of a unit are
// activated while they are in the first-level cache (amx_finish.h), and become tiles of the next
// product's input. Each element of this input takes 2 bytes of memory. Separate operations would
// write gate and up to memory and read them again: 8 bytes for each element.
#include <immintrin.h>

#include "kernels/cpu/amx_products.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_groups.h"
#include "kernels/cpu/storage_types.h"

namespace quire {
namespace {

static_assert(AmxTile::kDepth == kAmxPanel.bf16_group);
static_assert(AmxTile::kColumns == kAmxPanel.bf16_panel);

// Parameters that all tasks of one call share. A depth is a length along k, counted in tiles of 32
// values.
struct Job : Sink {
  const BFloat16* x = nullptr;  // [row tiles][depth][tile_rows][32]
  int64_t num_strips = 0;       // strips to compute; if `activated` is set, strips of gate only
  int64_t row_tiles = 0;
  int64_t segment_depth = 0;
  int64_t depth = 0;
  int64_t piece_depth = 0;
  int64_t row_tiles_per_block = 0;
  int64_t strips_per_group = 0;
  int64_t num_groups = 0;
  int64_t num_tasks = 0;
  int64_t unit_floats = 0;  // floats of Unit::rest

  bool has_pieces() const { return piece_depth < depth; }
};

struct Task {
  int64_t row_tile_begin = 0;
  int64_t row_tile_end = 0;
  int64_t strip_begin = 0;
  int64_t strip_end = 0;
  float* rest = nullptr;
  int64_t next_strip = -1;  // probable first strip of the thread's next task; -1: none
  Finish earlier;           // deferred work on the sums of the previous unit
};

// Returns a prefetcher of the rows of y to which the unit's sums will be written. It spreads the
// prefetches over the unit's last `steps` steps along k.
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

// Returns the deferred work that remains for the unit after segment `segment` of k is complete.
template <int kRowTiles>
Finish FinishOf(const Job& job, const Unit& unit, int64_t segment) {
  const bool is_last = segment + 1 == job.weight->num_segments();
  const int64_t most = kRowTiles * job.tile_rows;
  const int64_t left = job.num_rows - unit.row;
  Finish finish;
  finish.run = !is_last                   ? &MergeRows<kRowTiles>
               : job.activated != nullptr ? ActivationOf<kRowTiles>(job.activation)
                                          : &OutputRows<kRowTiles>;
  finish.sink = &job;
  finish.sums = unit.rest;
  finish.merges = __builtin_ctz(~static_cast<unsigned>(segment));
  finish.row = unit.row;
  finish.column = unit.column;
  finish.end = left < most ? left : most;
  return finish;
}

template <int kRowTiles>
void RunUnit(const Job& job, const Unit& unit, DepthRange piece, Ahead& ahead, Finish& earlier) {
  for (int64_t k = piece.begin; k < piece.end;) {
    const int64_t segment = k / job.segment_depth;
    const int64_t segment_end = (segment + 1) * job.segment_depth;
    const int64_t end = segment_end < piece.end ? segment_end : piece.end;
    if (k % job.segment_depth == 0) {
      ZeroSums();
    } else {
      LoadSums(unit.rest);
    }
    const Outputs outputs = end == job.depth && job.activated == nullptr
                                ? OutputsOf<kRowTiles>(job, unit, end - k)
                                : Outputs();
    earlier.Spread(end - k);
    if constexpr (kRowTiles == 2) {
      Multiply2x2(unit, {k, end}, ahead, outputs, earlier);
    } else {
      job.row_tiles == 1 ? Multiply1x4<true>(unit, {k, end}, ahead, outputs, earlier)
                         : Multiply1x4<false>(unit, {k, end}, ahead, outputs, earlier);
    }
    earlier.Flush();
    // The sums of a segment with an even index (from 0) wait until the next segment is complete.
    // They are stored where the next segment's merge reads them.
    const bool waits = end == segment_end && segment % 2 == 0 && end < job.depth;
    StoreSums(unit.rest + (waits ? kUnitFloats : 0));
    if (end == segment_end && !waits) {
      earlier = FinishOf<kRowTiles>(job, unit, segment);
    }
    k = end;
  }
}

// Returns the weights of the strip's first panel, from k on. k is counted in tiles of 32 values.
const std::byte* StripWeights(const Job& job, int64_t strip, int64_t k) {
  return job.weight->panel_data(strip * kStripTiles) + k * kTileBytes;
}

// Returns a prefetcher of the weights that are needed after strip s. It spreads the prefetches over
// `units` units, so that memory stays busy. `offset` is job.num_strips if the strips of the up
// matrix are prefetched, else 0.
Ahead ChooseAhead(
    const Job& job, const Task& task, DepthRange piece, int64_t s, int64_t offset, int64_t units) {
  DepthRange next = piece;
  int64_t strip = s + 1;
  if (strip == task.strip_end) {
    const bool has_piece = piece.end < job.depth;
    strip = has_piece ? task.strip_begin : task.next_strip;
    next.begin = has_piece ? piece.end : 0;
    next.end = next.begin + job.piece_depth < job.depth ? next.begin + job.piece_depth : job.depth;
  }
  Ahead ahead;
  if (strip >= 0) {
    ahead.at = StripWeights(job, strip + offset, next.begin);
    ahead.part_lines = (next.end - next.begin) * kTileBytes / AmxTile::kRowBytes;
    ahead.panel_bytes = job.depth * kTileBytes;
    ahead.left = ahead.part_lines;
    const int64_t steps = units * (piece.end - piece.begin);
    ahead.lines = (kStripTiles * ahead.part_lines + steps - 1) / steps;
  }
  return ahead;
}

Unit UnitOf(const Job& job, int64_t row_tile) {
  Unit unit;
  unit.x_step = job.tile_rows * AmxTile::kDepth;
  unit.depth = job.depth;
  unit.row = row_tile * job.tile_rows;
  unit.x[0] = job.x + row_tile * job.depth * unit.x_step;
  unit.x[1] = unit.x[0] + job.depth * unit.x_step;
  return unit;
}

void RunStrip(const Job& job, Task& task, DepthRange piece, int64_t s) {
  const int64_t first_panel = s * kStripTiles;
  const int64_t left = job.weight->num_panels() - first_panel;
  const int64_t panels = left < kStripTiles ? left : kStripTiles;
  const int64_t row_tiles = task.row_tile_end - task.row_tile_begin;
  const int64_t halves = (panels + 1) / 2;
  Ahead ahead = ChooseAhead(job, task, piece, s, 0, row_tiles / 2 * halves + row_tiles % 2);
  const int64_t first_rest = job.has_pieces() ? (s - task.strip_begin) * row_tiles : 0;
  for (int64_t i = 0; i < row_tiles;) {
    const bool is_pair = i + 1 < row_tiles;
    Unit unit = UnitOf(job, task.row_tile_begin + i);
    for (int64_t half = 0; half < (is_pair ? halves : 1); ++half, ++i) {
      unit.column = s * kStripColumns + 2 * half * AmxTile::kColumns;
      for (int64_t t = 0; t < kStripTiles; ++t) {
        // Tiles beyond the last panel repeat the first panel; their sums are not written to y.
        const int64_t tile = 2 * half + t < panels ? 2 * half + t : 0;
        unit.w[t] = job.weight->panel_data(first_panel + tile);
      }
      unit.rest = task.rest + (job.has_pieces() ? first_rest + i : 0) * job.unit_floats;
      if (is_pair) {
        RunUnit<2>(job, unit, piece, ahead, task.earlier);
      } else {
        RunUnit<1>(job, unit, piece, ahead, task.earlier);
      }
    }
    i += is_pair && halves == 1 ? 1 : 0;
  }
}

// Computes a strip of the gate matrix, and the strip of the up matrix that has the same columns.
// REQUIRES: the gate matrix consists of whole strips.
void RunGatedStrip(const Job& job, Task& task, DepthRange piece, int64_t s) {
  const int64_t row_tiles = task.row_tile_end - task.row_tile_begin;
  const int64_t units = 2 * row_tiles;
  const int64_t first_rest = job.has_pieces() ? (s - task.strip_begin) * units : 0;
  const int64_t panel_bytes = job.depth * kTileBytes;
  const std::byte* gate = StripWeights(job, s, 0);
  const std::byte* up = StripWeights(job, s + job.num_strips, 0);
  Ahead ahead;
  for (int64_t i = 0, row_tile = task.row_tile_begin; row_tile < task.row_tile_end;) {
    const bool is_pair = row_tile + 1 < task.row_tile_end;
    Unit unit = UnitOf(job, row_tile);
    for (int64_t tile = 0; tile < kStripTiles; tile += is_pair ? 1 : 2, ++i) {
      // The first half of the units prefetches the next strip of the gate matrix, the second half
      // the next strip of the up matrix.
      if (i == 0 || i == row_tiles) {
        ahead = ChooseAhead(job, task, piece, s, i == 0 ? 0 : job.num_strips, row_tiles);
      }
      unit.column = s * kStripColumns + tile * AmxTile::kColumns;
      for (int64_t t = 0; t < kSumTiles; ++t) {
        const int64_t at = is_pair ? tile : tile + t / 2;
        unit.w[t] = (t % 2 == 0 ? gate : up) + at * panel_bytes;
      }
      unit.rest = task.rest + (job.has_pieces() ? first_rest + i : 0) * job.unit_floats;
      if (is_pair) {
        RunUnit<2>(job, unit, piece, ahead, task.earlier);
      } else {
        RunUnit<1>(job, unit, piece, ahead, task.earlier);
      }
    }
    row_tile += is_pair ? 2 : 1;
  }
}

// Chooses blocks of rows that stay in the second-level cache for all strips of a task. If enough
// whole rows fit into the cache, k is not cut. Otherwise k is cut into pieces, and only one piece
// of the block's rows must fit at a time.
void ChooseBlocks(Job& job) {
  constexpr int64_t kMaxRowTiles = 32;
  constexpr int64_t kEnoughRowTiles = 12;
  constexpr int64_t kCacheBytes = int64_t{5} << 18;
  constexpr int64_t kMaxPieceDepth = 64;
  const int64_t row_tile_bytes = job.depth * AmxTile::kRows * AmxTile::kRowBytes;
  int64_t most = kCacheBytes / row_tile_bytes;
  const bool is_whole = most >= kEnoughRowTiles || most >= job.row_tiles;
  most = is_whole && most < kMaxRowTiles ? most : kMaxRowTiles;
  const int64_t blocks = (job.row_tiles + most - 1) / most;
  const int64_t even = (job.row_tiles + blocks - 1) / blocks;
  // Chooses an even number of row tiles if possible, because row tiles are computed in pairs.
  job.row_tiles_per_block = even + 1 <= most ? even + even % 2 : even;
  job.piece_depth = job.depth;
  if (is_whole || job.row_tiles == 1) {
    return;
  }
  int64_t depth = kCacheBytes / (job.row_tiles_per_block * AmxTile::kRows * AmxTile::kRowBytes);
  depth = depth < kMaxPieceDepth ? depth : kMaxPieceDepth;
  const int64_t pieces = (job.depth + depth - 1) / depth;
  job.piece_depth = (job.depth + pieces - 1) / pieces;
}

void ChooseGroups(Job& job, int num_threads) {
  const int64_t blocks = (job.row_tiles + job.row_tiles_per_block - 1) / job.row_tiles_per_block;
  const int64_t units = job.row_tiles_per_block * (job.activated != nullptr ? 2 : 1);
  const int64_t partial_sum_bytes = units * job.unit_floats * int64_t{sizeof(float)};
  // For one tile of rows, asks for few tasks, so that each task reads a long run of weights. For
  // more rows, asks for many tasks, so that threads finish at about the same time.
  const PanelGroups groups = ChoosePanelGroups(
      {.num_panels = job.num_strips,
       .num_blocks = blocks,
       .operations = 2 * job.num_rows * job.weight->in_features() * job.weight->out_features(),
       .partial_sum_bytes_per_panel = job.has_pieces() ? partial_sum_bytes : 0,
       .num_threads = num_threads,
       .tasks_per_thread = job.row_tiles > 1 ? 16 : 4});
  job.strips_per_group = groups.panels_per_group;
  job.num_groups = groups.num_groups;
  job.num_tasks = blocks * job.num_groups;
}

Task TaskAt(const Job& job, int64_t index, int thread, ThreadTeam& team) {
  Task task;
  task.row_tile_begin = index / job.num_groups * job.row_tiles_per_block;
  const int64_t row_tile_end = task.row_tile_begin + job.row_tiles_per_block;
  task.row_tile_end = row_tile_end < job.row_tiles ? row_tile_end : job.row_tiles;
  task.strip_begin = index % job.num_groups * job.strips_per_group;
  const int64_t strip_end = task.strip_begin + job.strips_per_group;
  task.strip_end = strip_end < job.num_strips ? strip_end : job.num_strips;
  const int64_t next = index + team.num_threads();
  if (next < job.num_tasks) {
    task.next_strip = next % job.num_groups * job.strips_per_group;
  }
  const int64_t units_per_strip =
      (task.row_tile_end - task.row_tile_begin) * (job.activated != nullptr ? 2 : 1);
  const int64_t units =
      job.has_pieces() ? (task.strip_end - task.strip_begin) * units_per_strip : 1;
  task.rest = static_cast<float*>(
      team.Scratch(thread, static_cast<size_t>(units * job.unit_floats) * sizeof(float)));
  return task;
}

// Rounds n values to bf16, and pads them with zeros to 32 values. REQUIRES: n <= 32.
void RoundLine(const float* from, int64_t n, BFloat16* to) {
  const auto mask = static_cast<uint32_t>((uint64_t{1} << n) - 1);
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), from + 16);
  _mm512_store_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}

// Rounds a row of x to bf16, in lines of 32 values. The lines begin `step` elements apart.
void RoundRow(const CpuPackedLinear& weight, const float* x, int64_t step, BFloat16* to) {
  const int64_t length = weight.segment_length();
  for (int segment = 0; segment < weight.num_segments(); ++segment, x += length) {
    for (int64_t k = 0; k < length; k += AmxTile::kDepth, to += step) {
      RoundLine(x + k, length - k < AmxTile::kDepth ? length - k : AmxTile::kDepth, to);
    }
  }
}

// Returns x rounded to bf16 (to nearest even), in tiles. Surplus rows of the last tile are not set:
// they affect only sums that are never written to y.
const BFloat16* RoundInput(const float* x, const Job& job, ThreadTeam& team) {
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

// Sets all fields except `x`, the destination (`y` or `activated`), and the sizes that Run chooses.
Job JobFor(const CpuPackedLinear& weight, int64_t num_rows) {
  // A slot holds the sums of one unit. One slot is for an unfinished segment of k. Three are for
  // finished segments: in a binary tree of eight segments, at most three sums wait for their
  // siblings.
  constexpr int64_t kSlots = 4;
  Job job;
  job.weight = &weight;
  job.num_strips = (weight.num_panels() + kStripTiles - 1) / kStripTiles;
  job.num_rows = num_rows;
  job.tile_rows = job.num_rows < AmxTile::kRows ? job.num_rows : AmxTile::kRows;
  job.row_tiles = (job.num_rows + job.tile_rows - 1) / job.tile_rows;
  job.segment_depth = weight.padded_segment_length() / AmxTile::kDepth;
  job.depth = weight.num_segments() * job.segment_depth;
  job.unit_floats = (weight.num_segments() > 1 ? kSlots : 1) * kUnitFloats;
  return job;
}

void Run(Job& job, ThreadTeam& team) {
  ChooseBlocks(job);
  ChooseGroups(job, team.num_threads());
  team.ParallelFor(job.num_tasks, [&](int64_t index, int thread) {
    const TileRegisters registers(job.tile_rows);
    Task task = TaskAt(job, index, thread, team);
    for (int64_t k = 0; k < job.depth; k += job.piece_depth) {
      const int64_t end = k + job.piece_depth;
      const DepthRange piece = {k, end < job.depth ? end : job.depth};
      for (int64_t s = task.strip_begin; s < task.strip_end; ++s) {
        job.activated != nullptr ? RunGatedStrip(job, task, piece, s)
                                 : RunStrip(job, task, piece, s);
      }
    }
    task.earlier.Flush();
  });
}

}  // namespace

void LinearAmx(const LinearParams& params, ThreadTeam& team) {
  const auto& weight = *static_cast<const CpuPackedLinear*>(params.weight);
  if (weight.dtype() != DType::kBF16) {
    return LinearAvx512(params, team);
  }
  Job job = JobFor(weight, params.num_tokens);
  job.x = RoundInput(static_cast<const float*>(params.x), job, team);
  job.y = static_cast<float*>(params.y);
  Run(job, team);
}

bool MlpAmx(const MlpParams& params, ThreadTeam& team) {
  const auto& in = *static_cast<const CpuPackedLinear*>(params.in);
  const auto& out = *static_cast<const CpuPackedLinear*>(params.out);
  const bool has_shape = params.gated && in.num_segments() == 1 &&
                         params.width % kStripColumns == 0 &&
                         out.segment_length() % AmxTile::kDepth == 0;
  // Refuses a single tile of rows: the separate operations are faster, as they read one strip of
  // weights at a time. With more rows, params.activated has room: its fp32 rows take at least as
  // many bytes as bf16 rows padded to whole tiles.
  if (!has_shape || in.dtype() != DType::kBF16 || out.dtype() != DType::kBF16 ||
      params.num_tokens <= AmxTile::kRows) {
    return false;
  }
  auto* activated = static_cast<BFloat16*>(params.activated);
  Job job = JobFor(in, params.num_tokens);
  job.x = RoundInput(static_cast<const float*>(params.x), job, team);
  job.activated = activated;
  job.activation = params.activation;
  job.num_strips /= 2;
  Run(job, team);
  Job next = JobFor(out, params.num_tokens);
  next.x = activated;
  next.y = static_cast<float*>(params.y);
  Run(next, team);
  return true;
}

}  // namespace quire
