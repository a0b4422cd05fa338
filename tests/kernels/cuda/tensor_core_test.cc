// Matrix instructions and asynchronous copies under the emulator, against plain loops.
#include "kernels/cuda/device/tensor_core.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/element.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/support/sanitizer.h"

namespace quire::gpu {
namespace {

// ---- Matrices ----

// Row r of the four matrices, one after the other, is at 16 * (37 * r % 32): rows in no order.
QUIRE_KERNEL void LoadMatrices(const uint16_t* in, uint32_t* out, uint32_t* out_transposed) {
  QUIRE_SHARED_MEMORY(shared);
  uint8_t* row = shared + 16 * (37 * threadIdx.x % 32);
  memcpy(row, in + 8 * threadIdx.x, 16);
  __syncwarp();
  uint32_t r[4];
  LoadMatrixX4(r, row);
  memcpy(out + 4 * threadIdx.x, r, 16);
  LoadMatrixX4Transposed(r, row);
  memcpy(out_transposed + 4 * threadIdx.x, r, 16);
}

TEST(MatrixTest, LoadMatrixGivesEachLaneItsFragment) {
  std::vector<uint16_t> in(4 * 8 * 8);
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<uint16_t>(1000 + i);
  }
  DeviceArray<uint16_t> device_in(in);
  DeviceArray<uint32_t> out(128);
  DeviceArray<uint32_t> out_transposed(128);

  ASSERT_EQ(QUIRE_LAUNCH(LoadMatrices,
                         dim3(1),
                         dim3(32),
                         512,
                         nullptr,
                         device_in.data(),
                         out.data(),
                         out_transposed.data()),
            0);

  std::vector<uint32_t> expected;
  std::vector<uint32_t> expected_transposed;
  for (size_t lane = 0; lane < 32; ++lane) {
    for (size_t matrix = 0; matrix < 4; ++matrix) {
      const auto at = [&](size_t row, size_t column) {
        return uint32_t{in[64 * matrix + 8 * row + column]};
      };
      const size_t g = lane / 4;
      const size_t t = lane % 4;
      expected.push_back(at(g, 2 * t) | at(g, 2 * t + 1) << 16);
      expected_transposed.push_back(at(2 * t, g) | at(2 * t + 1, g) << 16);
    }
  }
  EXPECT_EQ(out.ToHost(), expected);
  EXPECT_EQ(out_transposed.ToHost(), expected_transposed);
}

// c += a * b; a [16, 16], b [16, 8], c [16, 8], all row by row.
template <typename T>
QUIRE_KERNEL void Multiply(const T* a, const T* b, float* c) {
  const uint32_t g = threadIdx.x / 4;
  const uint32_t t = threadIdx.x % 4;
  const auto pair = [](T low, T high) { return low.bits | static_cast<uint32_t>(high.bits) << 16; };
  uint32_t a_fragment[4];
  for (uint32_t r = 0; r < 4; ++r) {
    const T* from = a + 16 * (g + 8 * (r & 1)) + 2 * t + 8 * (r >> 1);
    a_fragment[r] = pair(from[0], from[1]);
  }
  uint32_t b_fragment[2];
  for (uint32_t r = 0; r < 2; ++r) {
    const T* from = b + 8 * (2 * t + 8 * r) + g;
    b_fragment[r] = pair(from[0], from[8]);
  }
  float d[4];
  for (uint32_t r = 0; r < 4; ++r) {
    d[r] = c[8 * (g + 8 * (r >> 1)) + 2 * t + (r & 1)];
  }
  Mma16816<T>(d, a_fragment, b_fragment);
  for (uint32_t r = 0; r < 4; ++r) {
    c[8 * (g + 8 * (r >> 1)) + 2 * t + (r & 1)] = d[r];
  }
}

template <typename T>
std::vector<float> MultiplyOnDevice(const std::vector<T>& a,
                                    const std::vector<T>& b,
                                    const std::vector<float>& c) {
  DeviceArray<T> device_a(a);
  DeviceArray<T> device_b(b);
  DeviceArray<float> device_c(c);
  EXPECT_EQ(QUIRE_LAUNCH(Multiply<T>,
                         dim3(1),
                         dim3(32),
                         0,
                         nullptr,
                         device_a.data(),
                         device_b.data(),
                         device_c.data()),
            0);
  return device_c.ToHost();
}

template <typename T>
void ExpectProduct(uint32_t seed, bool integers) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&] { return integers ? std::nearbyint(normal(random) * 8) : normal(random); };
  std::vector<T> a(16 * 16);
  std::vector<T> b(16 * 8);
  std::vector<float> c(16 * 8);
  std::generate(a.begin(), a.end(), [&] { return FromFloat<T>(draw()); });
  std::generate(b.begin(), b.end(), [&] { return FromFloat<T>(draw()); });
  std::generate(c.begin(), c.end(), draw);

  const std::vector<float> product = MultiplyOnDevice(a, b, c);

  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      double expected = c[8 * row + column];
      for (size_t k = 0; k < 16; ++k) {
        expected += double{ToFloat(a[16 * row + k])} * ToFloat(b[8 * k + column]);
      }
      // Small integers leave nothing to round.
      ASSERT_NEAR(product[8 * row + column], expected, integers ? 0.0 : 1e-5);
    }
  }
}

TEST(MatrixTest, MmaMultipliesAndAdds) {
  for (uint32_t seed = 0; seed < 3; ++seed) {
    ExpectProduct<Bf16>(seed, true);
    ExpectProduct<F16>(seed, true);
    ExpectProduct<Bf16>(seed, false);
    ExpectProduct<F16>(seed, false);
  }
}

// Every 16-bit pattern goes through the conversion of the multiplication once, as a times 1.
template <typename T>
void ExpectMmaToReadEveryPattern() {
  std::vector<T> identity(16 * 8, FromFloat<T>(0.0F));
  for (size_t k = 0; k < 8; ++k) {
    identity[8 * k + k] = FromFloat<T>(1.0F);
  }
  // A row that holds an infinity or NaN would spread it over its zeros: those patterns are tested
  // alone in their row below.
  std::vector<T> a(16 * 16, FromFloat<T>(0.0F));
  for (uint32_t first = 0; first < 0x10000; first += 128) {
    for (uint32_t i = 0; i < 128; ++i) {
      T value{static_cast<uint16_t>(first + i)};
      a[16 * (i / 8) + i % 8] = std::isfinite(ToFloat(value)) ? value : FromFloat<T>(0.0F);
    }
    const std::vector<float> product = MultiplyOnDevice(a, identity, std::vector<float>(16 * 8));
    for (uint32_t i = 0; i < 128; ++i) {
      ASSERT_EQ(product[i], ToFloat(a[16 * (i / 8) + i % 8])) << first + i;
    }
  }
}

TEST(MatrixTest, MmaReadsEveryFinitePattern) {
  if (kUnderTsan) {
    GTEST_SKIP() << "a thousand launches of one warp: too slow under TSan";
  }
  ExpectMmaToReadEveryPattern<Bf16>();
  ExpectMmaToReadEveryPattern<F16>();
}

template <typename T>
void ExpectMmaToSpreadNonFinite() {
  const std::vector<T> ones(16 * 8, FromFloat<T>(1.0F));
  std::vector<T> a(16 * 16, FromFloat<T>(1.0F));
  a[16 * 2 + 5] = FromFloat<T>(INFINITY);
  a[16 * 9 + 15] = FromFloat<T>(-INFINITY);
  a[16 * 12] = FromFloat<T>(NAN);

  const std::vector<float> product = MultiplyOnDevice(a, ones, std::vector<float>(16 * 8));

  for (size_t column = 0; column < 8; ++column) {
    EXPECT_EQ(product[8 * 2 + column], INFINITY);
    EXPECT_EQ(product[8 * 9 + column], -INFINITY);
    EXPECT_TRUE(std::isnan(product[8 * 12 + column]));
    EXPECT_EQ(product[8 * 3 + column], 16.0F);
  }
}

TEST(MatrixTest, MmaSpreadsInfinityAndNanOverTheirRows) {
  ExpectMmaToSpreadNonFinite<Bf16>();
  ExpectMmaToSpreadNonFinite<F16>();
}

TEST(MatrixTest, BytePermutePicksBytes) {
  EXPECT_EQ(BytePermute(0x33221100, 0x77665544, 0x3210), 0x33221100u);
  EXPECT_EQ(BytePermute(0x33221100, 0x77665544, 0x7654), 0x77665544u);
  EXPECT_EQ(BytePermute(0x33221100, 0x77665544, 0x0527), 0x00552277u);
  EXPECT_EQ(BytePermute(0x33221100, 0x77665544, 0x8888), 0x00000000u);
}

// ---- Asynchronous copies ----

// The first bytes of the four 16-byte places before and after each wait.
QUIRE_KERNEL void CopyInGroups(const uint8_t* in, uint8_t* seen) {
  QUIRE_SHARED_MEMORY(shared);
  const auto look = [&] {
    for (int i = 0; i < 4; ++i) {
      *seen++ = shared[16 * i];
      *seen++ = shared[16 * i + 15];
    }
  };
  memset(shared, 1, 64);
  CopyAsync16(shared, in, true);
  CopyAsync16(shared + 16, in + 16, true);
  CommitCopies();
  CopyAsync16(shared + 32, nullptr, false);
  CommitCopies();
  CopyAsync16(shared + 48, in + 48, true);
  look();
  WaitCopies<1>();
  look();
  WaitCopies<0>();
  look();
  CommitCopies();
  WaitCopies<1>();
  look();
  WaitCopies<0>();
  look();
}

TEST(AsyncCopyTest, CopiesLandWhenTheirGroupIsWaitedForAndArePoisonBefore) {
  std::vector<uint8_t> in(64);
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<uint8_t>(100 + i);
  }
  DeviceArray<uint8_t> device_in(in);
  DeviceArray<uint8_t> seen(40);

  ASSERT_EQ(
      QUIRE_LAUNCH(CopyInGroups, dim3(1), dim3(1), 64, nullptr, device_in.data(), seen.data()), 0);

  const std::vector<uint8_t> expected = {
      255, 255, 255, 255, 255, 255, 255, 255,  // nothing has landed
      100, 115, 116, 131, 255, 255, 255, 255,  // all groups but the latest
      100, 115, 116, 131, 0,   0,   255, 255,  // all groups; the last copy is in none yet
      100, 115, 116, 131, 0,   0,   255, 255,  // it is the latest now
      100, 115, 116, 131, 0,   0,   148, 163,
  };
  EXPECT_EQ(seen.ToHost(), expected);
}

QUIRE_KERNEL void ChangeSourceMeanwhile(int32_t* source, int32_t* out) {
  QUIRE_SHARED_MEMORY(shared);
  CopyAsync16(shared, source, true);
  CommitCopies();
  source[1] = 5;
  WaitCopies<0>();
  memcpy(out, shared, 16);
}

TEST(AsyncCopyTest, TheSourceIsReadLate) {
  DeviceArray<int32_t> source(std::vector<int32_t>{1, 2, 3, 4});
  DeviceArray<int32_t> out(4);

  ASSERT_EQ(
      QUIRE_LAUNCH(ChangeSourceMeanwhile, dim3(1), dim3(1), 16, nullptr, source.data(), out.data()),
      0);

  EXPECT_EQ(out.ToHost(), (std::vector<int32_t>{1, 5, 3, 4}));
}

}  // namespace
}  // namespace quire::gpu
