// TileRegisters configures the tile registers of AMX. Include this header only from sources that
// are compiled for AMX.
//
// A tile has 16 rows of 64 bytes; a tile of sums has 16 rows and 16 columns of fp32. One TDPBF16PS
// instruction multiplies 16 rows of 32 bf16 numbers by 16 columns of 32 bf16 numbers, and adds the
// products to a tile of sums. The columns are stored in pairs: [k / 2][column][k % 2].
//
// Thread safety: tiles belong to the thread that has configured them.
#ifndef QUIRE_KERNELS_CPU_AMX_TILES_H_
#define QUIRE_KERNELS_CPU_AMX_TILES_H_

#include <immintrin.h>

#include <cstdint>

namespace quire {
namespace {

struct AmxTile {
  static constexpr int64_t kRows = 16;
  static constexpr int64_t kColumns = 16;
  static constexpr int64_t kDepth = 32;  // values of k that an operand tile holds
  static constexpr int64_t kFloats = kRows * kColumns;
  static constexpr int64_t kRowBytes = 64;  // a cache line
};

// The operand of the instruction ldtilecfg, in the layout that Intel's manual gives.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Configures the tiles of this thread. Tiles 0 to 3 are sums, and 4 and 5 are left operands; these
// six have `rows` rows each. Tiles 6 and 7 are right operands. The destructor releases the tiles,
// else every thread switch would save 8 KiB.
class TileRegisters {
 public:
  explicit TileRegisters(int64_t rows) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = AmxTile::kRowBytes;
      config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : AmxTile::kRows);
    }
    // Makes gcc keep all stores to `config`. gcc 12 assumes that ldtilecfg reads only eight bytes,
    // and could drop the stores to the other bytes.
    asm volatile("" : : "m"(config));
    _tile_loadconfig(&config);
  }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// Keeps the vector unit awake; called in each step of a loop of tile instructions. The unit falls
// asleep after half a microsecond of tile instructions alone. Storing sums then waits a quarter of
// a microsecond until the unit wakes up: a fifth of a product's time, measured on a Xeon of 2024.
inline void KeepVectorUnitAwake() {
  __m512 zero = _mm512_setzero_ps();
  asm volatile("vaddps %0, %0, %0" : "+v"(zero));
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_AMX_TILES_H_
