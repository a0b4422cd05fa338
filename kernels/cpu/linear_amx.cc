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
//
// In MlpAmx a unit has 16 columns of gate and the same of up. Its sums are activated while they are
// in the first-level cache and become tiles of the next product's input: outputs in fp32, which are
// four times as many bytes, would be written to memory and read again.
#include <immintrin.h>

#include "kernels/cpu/activate_kernel.inl.h"
#include "kernels/cpu/amx_products.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_groups.h"
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/storage_types.h"

namespace quire {
namespace {

static_assert(AmxTile::kDepth == kAmxPanel.bf16_group);

// What all tasks of one call share. Counts of k are in tiles.
struct Job {
  const CpuPackedLinear* weight = nullptr;
  const BFloat16* x = nullptr;  // [row tiles][depth][tile_rows][32]
  float* y = nullptr;
  BFloat16* activated = nullptr;  // where set: gate and up become this, the x of another product
  ActivationKind activation = ActivationKind::kSilu;
  int64_t num_panels = 0;  // in tasks; of gate alone where its sums are activated
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
  int64_t next_panel = -1;  // the first that the thread is likely to want afterwards
};

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

// In a namespace without a name: no other source gets functions that were compiled here.
struct Simd : SimdAvx512 {};

// Sums 0 and 1, 2 and 3 are gate and up of the same columns.
template <typename Function, int kRowTiles>
void ActivateSums(const Job& job, const Unit& unit) {
  const int64_t width = job.weight->out_features() / 2;
  const float* bias = job.weight->bias();
  for (int64_t pair = 0; pair < 2; ++pair) {
    const int64_t row = unit.row + (kRowTiles == 2 ? pair * job.tile_rows : 0);
    const int64_t column = unit.column + (kRowTiles == 2 ? 0 : pair * AmxTile::kColumns);
    const float* gates = unit.rest + 2 * pair * AmxTile::kFloats;
    const float* ups = gates + AmxTile::kFloats;
    BFloat16* to = job.activated + row * width +
                   column / AmxTile::kDepth * job.tile_rows * AmxTile::kDepth +
                   column % AmxTile::kDepth;
    for (int64_t r = 0; r < job.tile_rows && row + r < job.num_rows; ++r) {
      __m512 gate = _mm512_load_ps(gates + r * AmxTile::kColumns);
      __m512 up = _mm512_load_ps(ups + r * AmxTile::kColumns);
      if (bias != nullptr) {
        gate = _mm512_add_ps(gate, _mm512_loadu_ps(bias + column));
        up = _mm512_add_ps(up, _mm512_loadu_ps(bias + width + column));
      }
      const __m512 activated = _mm512_mul_ps(Function::Apply(gate), up);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + r * AmxTile::kDepth),
                          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(activated)));
    }
  }
}

template <int kRowTiles>
void FinishActivated(const Job& job, const Unit& unit) {
  using Kernel = ActivateKernel<Simd>;
  switch (job.activation) {
    case ActivationKind::kSilu:
      return ActivateSums<Kernel::Silu, kRowTiles>(job, unit);
    case ActivationKind::kRelu:
      return ActivateSums<Kernel::Relu, kRowTiles>(job, unit);
    case ActivationKind::kGelu:
      return ActivateSums<Kernel::Gelu, kRowTiles>(job, unit);
    case ActivationKind::kGeluTanh:
      return ActivateSums<Kernel::GeluTanh, kRowTiles>(job, unit);
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
    const Outputs outputs = end == job.depth && job.activated == nullptr
                                ? OutputsOf<kRowTiles>(job, unit, end - k)
                                : Outputs();
    if constexpr (kRowTiles == 2) {
      Multiply2x2(unit, {k, end}, ahead, outputs);
    } else {
      Multiply1x4(unit, {k, end}, ahead, outputs);
    }
    StoreSums(unit.rest);
    if (end == segment_end) {
      job.activated != nullptr ? FinishActivated<kRowTiles>(job, unit)
                               : FinishSegment<kRowTiles>(job, unit, segment);
    }
    k = end;
  }
}

// The weights of the panel that comes after p, `offset` panels further on, or null.
const std::byte* NextWeights(
    const Job& job, const Task& task, DepthRange piece, int64_t p, int64_t offset) {
  const auto at = [&](int64_t panel, int64_t k) {
    return job.weight->panel_data(panel + offset) +
           k * job.weight->panel_columns(panel + offset) * AmxTile::kRowBytes;
  };
  if (p + 1 < task.panel_end) {
    return at(p + 1, piece.begin);
  }
  if (piece.end < job.depth) {
    return at(task.panel_begin, piece.end);
  }
  return task.next_panel < 0 ? nullptr : at(task.next_panel, 0);
}

// A lone tile of rows reads its weights a little ahead of itself. Of several units over one piece
// each fetches a part of the weights that come next, so that memory is busy during all of them.
Ahead ChooseAhead(const Job& job, const Task& task, DepthRange piece, int64_t p, int64_t units) {
  constexpr int64_t kLeadBytes = 8192;
  const CpuPackedLinear& weight = *job.weight;
  const int64_t columns = weight.panel_columns(p);
  if (task.row_tile_end - task.row_tile_begin == 1) {
    const std::byte* w = weight.panel_data(p) + piece.begin * columns * AmxTile::kRowBytes;
    return {w + kLeadBytes, columns, /*is_near=*/true};
  }
  const std::byte* next = NextWeights(job, task, piece, p, 0);
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

// A panel of gate, and the one of up with the same columns. REQUIRES: whole panels.
void RunGatedPanel(const Job& job, const Task& task, DepthRange piece, int64_t p) {
  const CpuPackedLinear& weight = *job.weight;
  const int64_t row_tiles = task.row_tile_end - task.row_tile_begin;
  const int64_t units = 2 * row_tiles;
  const int64_t first_rest = job.has_pieces() ? (p - task.panel_begin) * units : 0;
  const std::byte* gate = weight.panel_data(p);
  const std::byte* up = weight.panel_data(p + job.num_panels);
  Unit unit;
  unit.x_step = job.tile_rows * AmxTile::kDepth;
  unit.w_step = kAmxPanel.panel * AmxTile::kRowBytes;
  unit.w_stride = kAmxPanel.panel * int64_t{2 * sizeof(BFloat16)};
  Ahead ahead;
  for (int64_t i = 0, row_tile = task.row_tile_begin; row_tile < task.row_tile_end;) {
    const bool is_pair = row_tile + 1 < task.row_tile_end;
    unit.row = row_tile * job.tile_rows;
    unit.x[0] = job.x + row_tile * job.depth * unit.x_step;
    unit.x[1] = unit.x[0] + job.depth * unit.x_step;
    for (int64_t tile = 0; tile < kPanelTiles; tile += is_pair ? 1 : 2, ++i) {
      if (i == 0 || i == row_tiles) {  // the first half fetches the next gate, the second its up
        const std::byte* next = NextWeights(job, task, piece, p, i == 0 ? 0 : job.num_panels);
        ahead = {next, next == nullptr ? 0 : (kAmxPanel.panel + row_tiles - 1) / row_tiles};
      }
      unit.column = p * kAmxPanel.panel + tile * AmxTile::kColumns;
      for (int64_t t = 0; t < kSumTiles; ++t) {
        const int64_t at = is_pair ? tile : tile + t / 2;
        unit.w[t] = (t % 2 == 0 ? gate : up) + at * AmxTile::kRowBytes;
      }
      unit.rest = task.rest + (job.has_pieces() ? first_rest + i : 0) * job.unit_floats;
      if (is_pair) {
        RunUnit<2>(job, unit, piece, ahead);
      } else {
        RunUnit<1>(job, unit, piece, ahead);
      }
    }
    row_tile += is_pair ? 2 : 1;
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

void ChooseGroups(Job& job, int num_threads) {
  const int64_t blocks = (job.row_tiles + job.row_tiles_per_block - 1) / job.row_tiles_per_block;
  const int64_t units = job.row_tiles_per_block * (job.activated != nullptr ? 2 : 1);
  const int64_t rest_bytes = units * job.unit_floats * int64_t{sizeof(float)};
  const PanelGroups groups = ChoosePanelGroups(
      {.num_panels = job.num_panels,
       .num_blocks = blocks,
       .operations = 2 * job.num_rows * job.weight->in_features() * job.weight->out_features(),
       .rest_bytes_per_panel = job.has_pieces() ? rest_bytes : 0,
       .num_threads = num_threads});
  job.panels_per_group = groups.panels_per_group;
  job.num_groups = groups.num_groups;
  job.num_tasks = blocks * job.num_groups;
}

Task TaskAt(const Job& job, int64_t index, int thread, ThreadTeam& team) {
  Task task;
  task.row_tile_begin = index / job.num_groups * job.row_tiles_per_block;
  const int64_t row_tile_end = task.row_tile_begin + job.row_tiles_per_block;
  task.row_tile_end = row_tile_end < job.row_tiles ? row_tile_end : job.row_tiles;
  task.panel_begin = index % job.num_groups * job.panels_per_group;
  const int64_t panel_end = task.panel_begin + job.panels_per_group;
  task.panel_end = panel_end < job.num_panels ? panel_end : job.num_panels;
  const int64_t next = index + team.num_threads();
  if (next < job.num_tasks) {
    task.next_panel = next % job.num_groups * job.panels_per_group;
  }
  const int64_t units_per_panel =
      (task.row_tile_end - task.row_tile_begin) * (job.activated != nullptr ? 2 : 1);
  const int64_t units =
      job.has_pieces() ? (task.panel_end - task.panel_begin) * units_per_panel : 1;
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

// Everything but x and where the sums go.
Job JobFor(const CpuPackedLinear& weight, int64_t num_rows) {
  constexpr int64_t kSlots = 4;  // an unfinished segment, and three levels of a tree over eight
  Job job;
  job.weight = &weight;
  job.num_panels = weight.num_panels();
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
    const Task task = TaskAt(job, index, thread, team);
    for (int64_t k = 0; k < job.depth; k += job.piece_depth) {
      const int64_t end = k + job.piece_depth;
      const DepthRange piece = {k, end < job.depth ? end : job.depth};
      for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
        job.activated != nullptr ? RunGatedPanel(job, task, piece, p)
                                 : RunPanel(job, task, piece, p);
      }
    }
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
                         params.width % kAmxPanel.panel == 0 &&
                         out.segment_length() % AmxTile::kDepth == 0;
  // A lone tile of rows had better read one panel straight forwards. Rounded rows, padded to whole
  // tiles, fit where `activated` has fp32.
  if (!has_shape || in.dtype() != DType::kBF16 || out.dtype() != DType::kBF16 ||
      params.num_tokens <= AmxTile::kRows) {
    return false;
  }
  auto* activated = static_cast<BFloat16*>(params.activated);
  Job job = JobFor(in, params.num_tokens);
  job.x = RoundInput(static_cast<const float*>(params.x), job, team);
  job.activated = activated;
  job.activation = params.activation;
  job.num_panels /= 2;
  Run(job, team);
  Job next = JobFor(out, params.num_tokens);
  next.x = activated;
  next.y = static_cast<float*>(params.y);
  Run(next, team);
  return true;
}

}  // namespace quire
