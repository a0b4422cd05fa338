// The code around cuBLASLt, with a fake library that computes in plain loops (fake_cublaslt.h), in
// the emulator's memory. Whether the real library takes the same descriptions is tested on a GPU
// (tests/gpu).
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/runtime.h"
#include "kernels/reference/pack_linear.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/fake_cublaslt.h"
#include "tests/kernels/cuda/row_compare.h"

namespace quire::gpu {
namespace {

constexpr int64_t kOutFeatures = 16;
constexpr int64_t kInFeatures = 96;

FakeCublasLt& Fake() {
  void* library = dlopen(QUIRE_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << QUIRE_FAKE_CUBLASLT;
  static auto get = reinterpret_cast<FakeCublasLtFunction>(dlsym(library, kFakeCublasLtSymbol));
  return *get();
}

std::vector<std::string>& Warnings() {
  static std::vector<std::string> warnings;
  return warnings;
}

class GemmHandle {
 public:
  explicit GemmHandle(GemmOptions options = {}) {
    options.library_path = QUIRE_FAKE_CUBLASLT;
    options.warn = [](const char* sentence) { Warnings().push_back(sentence); };
    EXPECT_EQ(CreateGemm(options, &gemm_), 0);
  }
  ~GemmHandle() { EXPECT_EQ(DestroyGemm(gemm_), 0); }
  GemmHandle(const GemmHandle&) = delete;
  GemmHandle& operator=(const GemmHandle&) = delete;

  void* get() const { return gemm_; }

 private:
  void* gemm_ = nullptr;
};

// The inputs x and weight of T with their scales; y and bias of Y.
template <typename T, typename Y>
class Operands {
 public:
  static constexpr bool kHasScales = std::is_same_v<T, F8E4M3>;

  Operands(int64_t rows, bool has_bias)
      : x_(RandomElements<T>(rows * kInFeatures, 1, 1.0F)),
        weight_(RandomElements<T>(kOutFeatures * kInFeatures, 2, 0.5F)),
        bias_(has_bias ? RandomElements<Y>(kOutFeatures, 3, 1.0F) : std::vector<Y>()),
        x_scales_(RandomFloats(rows, 4, 0.1F, 1.0F)),
        weight_scales_(RandomFloats(kOutFeatures, 5, 0.1F, 2.0F)),
        device_x_(x_),
        device_weight_(weight_),
        device_bias_(bias_),
        device_x_scales_(x_scales_),
        device_weight_scales_(weight_scales_),
        y_(rows * kOutFeatures) {}

  GemmArgs Args() {
    return {.rows = rows(),
            .out_features = kOutFeatures,
            .in_features = kInFeatures,
            .x = device_x_.data(),
            .weight = device_weight_.data(),
            .bias = bias_.empty() ? nullptr : device_bias_.data(),
            .y = y_.data(),
            .dtype = kDType<T>,
            .y_dtype = kDType<Y>,
            .x_scales = kHasScales ? device_x_scales_.data() : nullptr,
            .weight_scales = kHasScales ? device_weight_scales_.data() : nullptr};
  }

  // A product of its own for the rows from `first` on, which writes to other memory.
  GemmArgs Rows(int64_t first, int64_t count, DeviceArray<Y>& y) {
    GemmArgs args = Args();
    args.rows = count;
    args.x = device_x_.data() + first * kInFeatures;
    args.x_scales = kHasScales ? device_x_scales_.data() + first : nullptr;
    args.y = y.data();
    return args;
  }

  int64_t rows() const { return static_cast<int64_t>(x_scales_.size()); }
  std::vector<Y> y() const { return y_.ToHost(); }

  std::vector<float> Expected() const {
    const std::vector<float> x = Scaled(x_, x_scales_, kInFeatures);
    const std::vector<float> weight = Scaled(weight_, weight_scales_, kInFeatures);
    std::vector<float> bias;
    for (const Y& value : bias_) {
      bias.push_back(ToFloat(value));
    }
    const MatrixView matrix = {.data = weight.data(), .rows = kOutFeatures, .cols = kInFeatures};
    const auto packed = reference::PackLinear({.parts = std::span(&matrix, 1), .bias = bias});
    EXPECT_TRUE(packed.ok()) << packed.status();
    std::vector<float> expected(static_cast<size_t>(rows() * kOutFeatures));
    reference::Linear(
        {.num_tokens = rows(), .x = x.data(), .y = expected.data(), .weight = packed->get()});
    return expected;
  }

 private:
  template <typename V>
  static constexpr DType kDType = DTypeOf<V>::kValue;
  // The rows in fp32, each times its scale if there are scales.
  static std::vector<float> Scaled(const std::vector<T>& rows,
                                   const std::vector<float>& scales,
                                   int64_t width) {
    std::vector<float> scaled;
    for (size_t i = 0; i < rows.size(); ++i) {
      const float scale = kHasScales ? scales[i / static_cast<size_t>(width)] : 1.0F;
      scaled.push_back(ToFloat(rows[i]) * scale);
    }
    return scaled;
  }

  std::vector<T> x_;
  std::vector<T> weight_;
  std::vector<Y> bias_;
  std::vector<float> x_scales_;
  std::vector<float> weight_scales_;
  DeviceArray<T> device_x_;
  DeviceArray<T> device_weight_;
  DeviceArray<Y> device_bias_;
  DeviceArray<float> device_x_scales_;
  DeviceArray<float> device_weight_scales_;
  DeviceArray<Y> y_;
};

class GemmTest : public testing::Test {
 protected:
  void SetUp() override {
    Fake() = {};
    Warnings().clear();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("quire_gemm_" + std::to_string(getpid()));
  const std::string cache_ = folder_ / "cache";
};

template <typename T, typename Y>
void ExpectProduct(bool batch_invariant, bool has_bias) {
  SCOPED_TRACE(testing::Message() << "invariant " << batch_invariant << " bias " << has_bias);
  const GemmHandle gemm({.batch_invariant = batch_invariant ? 1 : 0});
  Operands<T, Y> operands(/*rows=*/5, has_bias);

  ASSERT_EQ(CheckGemm(gemm.get(), operands.Args()), 0);
  ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);

  ExpectRowsNear(
      operands.y(), operands.Expected(), kOutFeatures, kL2Limit<Y> + 1e-6, kMaxLimit<Y> + 1e-6);
}

TEST_F(GemmTest, ProductsOfAllTypesAreDescribedToTheLibraryAsTheyAre) {
  for (const bool invariant : {false, true}) {
    for (const bool has_bias : {false, true}) {
      ExpectProduct<Bf16, Bf16>(invariant, has_bias);
      ExpectProduct<F16, F16>(invariant, has_bias);
      ExpectProduct<F8E4M3, Bf16>(invariant, has_bias);
      ExpectProduct<F8E4M3, F16>(invariant, has_bias);
    }
    ExpectProduct<Bf16, float>(invariant, false);
    ExpectProduct<F16, float>(invariant, false);
    ExpectProduct<F8E4M3, float>(invariant, false);
  }
}

TEST_F(GemmTest, RefusesTypesAndWidthsThatNoProductHas) {
  const GemmHandle gemm;
  const GemmArgs good = {.rows = 1,
                         .out_features = 32,
                         .in_features = 32,
                         .dtype = DType::kF8E4M3,
                         .y_dtype = DType::kBF16};
  EXPECT_EQ(CheckGemm(gemm.get(), good), 0);
  std::vector<GemmArgs> bad(5, good);
  const float bias = 0.0F;
  bad[0].in_features = 40;
  bad[1].out_features = 40;
  bad[2].y_dtype = DType::kF8E4M3;
  bad[3].y_dtype = DType::kF32;
  bad[3].bias = &bias;
  bad[4].dtype = DType::kF16;  // with y of bf16
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(CheckGemm(gemm.get(), bad[i]), kUnsupported) << i;
    EXPECT_EQ(RunGemm(gemm.get(), bad[i], nullptr), kUnsupported) << i;
  }
}

TEST_F(GemmTest, WhetherThereAreProductsDoesNotDependOnWhereABiasIs) {
  const GemmHandle gemm;
  Operands<F8E4M3, Bf16> fp8(/*rows=*/2, /*has_bias=*/true);
  GemmArgs args = fp8.Args();
  args.bias = static_cast<const uint8_t*>(args.bias) + 2;

  EXPECT_EQ(CheckGemm(gemm.get(), args), 0);
}

// An older library or device has products of 16-bit types and none of 8-bit types.
TEST_F(GemmTest, ALibraryWithoutVectorsOfScalesHasNoFp8Products) {
  Fake().has_vector_scales = false;
  const GemmHandle gemm;
  Operands<F8E4M3, Bf16> fp8(/*rows=*/2, /*has_bias=*/false);
  Operands<Bf16, Bf16> bf16(/*rows=*/2, /*has_bias=*/false);

  EXPECT_EQ(CheckGemm(gemm.get(), fp8.Args()), kUnsupported);
  EXPECT_LE(RunGemm(gemm.get(), fp8.Args(), nullptr), kGemmError);
  EXPECT_EQ(CheckGemm(gemm.get(), bf16.Args()), 0);
}

TEST_F(GemmTest, ALibraryThatIsNotThereOrNotCublasLtIsNone) {
  void* gemm = nullptr;

  EXPECT_EQ(CreateGemm({.library_path = "/nowhere/libcublasLt.so"}, &gemm), kNoGemmLibrary);
  EXPECT_EQ(CreateGemm({.library_path = "libm.so.6"}, &gemm), kNoGemmLibrary);
}

// ---- Tuning
// --------------------------------------------------------------------------------------

TEST_F(GemmTest, AShapeIsTimedOnceAndRunsOnceFromThenOn) {
  const GemmHandle gemm;
  Operands<Bf16, Bf16> operands(/*rows=*/3, /*has_bias=*/false);
  ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);
  const int timed = Fake().products;

  ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);

  EXPECT_GE(timed, FakeCublasLt::kNumAlgorithms);
  EXPECT_EQ(Fake().products, timed + 1);
  EXPECT_EQ(Fake().heuristics, 1);
}

TEST_F(GemmTest, RowCountsOfOneRangeShareWhatWasTimed) {
  const GemmHandle gemm;
  Operands<Bf16, Bf16> operands(/*rows=*/64, /*has_bias=*/false);
  DeviceArray<Bf16> y(operands.rows() * kOutFeatures);
  ASSERT_EQ(RunGemm(gemm.get(), operands.Rows(0, 57, y), nullptr), 0);
  const int timed = Fake().products;

  ASSERT_EQ(RunGemm(gemm.get(), operands.Rows(0, 64, y), nullptr), 0);
  EXPECT_EQ(Fake().products, timed + 1);

  ASSERT_EQ(RunGemm(gemm.get(), operands.Rows(0, 56, y), nullptr), 0);
  EXPECT_GT(Fake().products, timed + 2);
}

TEST_F(GemmTest, AnAlgorithmThatFailsIsNotTaken) {
  for (int broken = 0; broken < FakeCublasLt::kNumAlgorithms; ++broken) {
    Fake().broken_algorithm = broken;
    const GemmHandle gemm;
    Operands<F16, F16> operands(/*rows=*/3, /*has_bias=*/false);

    ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0) << broken;
    ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0) << broken;

    EXPECT_NE(Fake().last_algorithm, broken);
  }
}

TEST_F(GemmTest, WhileAGraphIsRecordedNothingIsTimed) {
  const GemmHandle gemm;
  Operands<Bf16, Bf16> operands(/*rows=*/3, /*has_bias=*/false);
  Stream stream = nullptr;
  ASSERT_EQ(CreateStream(&stream), 0);

  ASSERT_EQ(BeginGraph(stream), 0);
  ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), stream), 0);
  Graph graph = nullptr;
  ASSERT_EQ(EndGraph(stream, &graph), 0);
  ASSERT_EQ(DestroyGraph(graph), 0);
  ASSERT_EQ(DestroyStream(stream), 0);

  EXPECT_EQ(Fake().products, 1);
  ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);
  EXPECT_GT(Fake().products, 2);  // now it was
}

// Fake().weights lists the products that timed the three algorithms, and then the product that was
// asked for.
TEST_F(GemmTest, ProductsAreTimedWithCopiesOfTheWeightInTurns) {
  DeviceInfo before;
  ASSERT_EQ(QueryDevice(0, &before), 0);
  {
    const GemmHandle gemm;
    Operands<Bf16, Bf16> operands(/*rows=*/3, /*has_bias=*/false);
    ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);

    std::vector<const void*> weights = Fake().weights;
    EXPECT_EQ(weights.back(), operands.Args().weight);
    std::sort(weights.begin(), weights.end());
    EXPECT_EQ(std::unique(weights.begin(), weights.end()), weights.end());
    EXPECT_GT(weights.size(), size_t{FakeCublasLt::kNumAlgorithms});
    ExpectRowsNear(operands.y(), operands.Expected(), kOutFeatures, 3e-3, 4e-3);
  }
  DeviceInfo after;
  ASSERT_EQ(QueryDevice(0, &after), 0);
  EXPECT_EQ(after.free_bytes, before.free_bytes);
}

// Holds all memory of the device except left_bytes.
class FullDevice {
 public:
  explicit FullDevice(int64_t left_bytes) {
    DeviceInfo info;
    EXPECT_EQ(QueryDevice(0, &info), 0);
    EXPECT_EQ(Allocate(&memory_, static_cast<size_t>(info.free_bytes - left_bytes)), 0);
  }
  ~FullDevice() { EXPECT_EQ(Free(memory_), 0); }
  FullDevice(const FullDevice&) = delete;
  FullDevice& operator=(const FullDevice&) = delete;

 private:
  void* memory_ = nullptr;
};

TEST_F(GemmTest, WithoutMemoryForCopiesProductsAreTimedWithTheWeightAlone) {
  const GemmHandle gemm;
  Operands<Bf16, Bf16> operands(/*rows=*/3, /*has_bias=*/false);
  {
    const FullDevice full(/*left_bytes=*/0);
    EXPECT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);
  }
  for (const void* weight : Fake().weights) {
    EXPECT_EQ(weight, operands.Args().weight);
  }
  ExpectRowsNear(operands.y(), operands.Expected(), kOutFeatures, 3e-3, 4e-3);
}

TEST_F(GemmTest, WithLittleMemoryThereAreFewerCopies) {
  const GemmHandle gemm;
  Operands<Bf16, Bf16> operands(/*rows=*/3, /*has_bias=*/false);
  constexpr int64_t kWeightBytes = kOutFeatures * kInFeatures * 2;
  {
    const FullDevice full(/*left_bytes=*/3 * kWeightBytes);
    EXPECT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);
  }
  const std::set<const void*> weights(Fake().weights.begin(), Fake().weights.end());
  EXPECT_EQ(weights.size(), 3U) << "two copies, and the weight of the product itself";
}

TEST_F(GemmTest, ANewShapeIsPlannedByItsFirstProduct) {
  for (const bool invariant : {false, true}) {
    const GemmHandle gemm({.batch_invariant = invariant ? 1 : 0});
    Operands<Bf16, Bf16> operands(/*rows=*/3, /*has_bias=*/false);
    bool is_planned = true;
    ASSERT_EQ(IsGemmPlanned(gemm.get(), operands.Args(), &is_planned), 0);
    EXPECT_FALSE(is_planned);

    ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);

    ASSERT_EQ(IsGemmPlanned(gemm.get(), operands.Args(), &is_planned), 0);
    EXPECT_TRUE(is_planned);
    GemmArgs other = operands.Args();
    other.rows = 2;
    ASSERT_EQ(IsGemmPlanned(gemm.get(), other, &is_planned), 0);
    EXPECT_FALSE(is_planned);
  }
}

// ---- The file
// ------------------------------------------------------------------------------------

// Counts the heuristics that a product of a new Gemm with this file asks for.
int HeuristicsWith(const std::string& cache, const char* device = "H200", int64_t rows = 3) {
  const GemmHandle gemm({.cache_path = cache.c_str(), .device_name = device});
  Operands<Bf16, Bf16> operands(rows, /*has_bias=*/false);
  const int before = Fake().heuristics;
  EXPECT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);
  ExpectRowsNear(operands.y(), operands.Expected(), kOutFeatures, 3e-3, 4e-3);
  return Fake().heuristics - before;
}

TEST_F(GemmTest, WhatWasTimedIsThereAfterTheNextStart) {
  Fake().broken_algorithm = 2;
  EXPECT_EQ(HeuristicsWith(cache_), 1);
  const int chosen = Fake().last_algorithm;
  Fake().broken_algorithm = -1;
  const int products = Fake().products;

  EXPECT_EQ(HeuristicsWith(cache_), 0);

  EXPECT_EQ(Fake().products, products + 1);
  EXPECT_GE(chosen, 0);
  EXPECT_TRUE(Warnings().empty());
}

// The times are those of a weight in the L2 cache, so the next start times again.
TEST_F(GemmTest, WhatWasTimedWithoutCopiesIsNotKept) {
  {
    const GemmHandle gemm({.cache_path = cache_.c_str(), .device_name = "H200"});
    Operands<Bf16, Bf16> three(/*rows=*/3, /*has_bias=*/false);
    Operands<Bf16, Bf16> four(/*rows=*/4, /*has_bias=*/false);
    {
      const FullDevice full(/*left_bytes=*/0);
      ASSERT_EQ(RunGemm(gemm.get(), three.Args(), nullptr), 0);
    }
    ASSERT_EQ(RunGemm(gemm.get(), four.Args(), nullptr), 0);
    const int heuristics = Fake().heuristics;
    ASSERT_EQ(RunGemm(gemm.get(), three.Args(), nullptr), 0);
    EXPECT_EQ(Fake().heuristics, heuristics) << "this start knows it";
  }
  EXPECT_EQ(HeuristicsWith(cache_, "H200", /*rows=*/4), 0);
  EXPECT_EQ(HeuristicsWith(cache_, "H200", /*rows=*/3), 1);
  EXPECT_EQ(HeuristicsWith(cache_, "H200", /*rows=*/3), 0);
}

TEST_F(GemmTest, OtherShapesDevicesAndVersionsAreTimedAndKeptBesideIt) {
  EXPECT_EQ(HeuristicsWith(cache_), 1);
  EXPECT_EQ(HeuristicsWith(cache_, "H200", /*rows=*/4), 1);
  EXPECT_EQ(HeuristicsWith(cache_, "H100\tof another shop"), 1);
  Fake().version = 130200;
  EXPECT_EQ(HeuristicsWith(cache_), 1);

  EXPECT_EQ(HeuristicsWith(cache_), 0);
  Fake().version = 130100;
  EXPECT_EQ(HeuristicsWith(cache_), 0);
  EXPECT_EQ(HeuristicsWith(cache_, "H200", /*rows=*/4), 0);
  EXPECT_EQ(HeuristicsWith(cache_, "H100\tof another shop"), 0);
}

TEST_F(GemmTest, TwoProcessesKeepEachOthersAlgorithms) {
  const GemmOptions options = {.cache_path = cache_.c_str(), .device_name = "H200"};
  const GemmHandle first(options);
  const GemmHandle second(options);
  Operands<Bf16, Bf16> three(/*rows=*/3, /*has_bias=*/false);
  Operands<Bf16, Bf16> four(/*rows=*/4, /*has_bias=*/false);

  ASSERT_EQ(RunGemm(first.get(), three.Args(), nullptr), 0);
  ASSERT_EQ(RunGemm(second.get(), four.Args(), nullptr), 0);

  EXPECT_EQ(HeuristicsWith(cache_, "H200", /*rows=*/3), 0);
  EXPECT_EQ(HeuristicsWith(cache_, "H200", /*rows=*/4), 0);
}

TEST_F(GemmTest, AnAlgorithmOfTheFileThatTheLibraryDoesNotTakeIsReplaced) {
  EXPECT_EQ(HeuristicsWith(cache_), 1);
  std::ifstream file(cache_);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t magic = text.find("0000005155495245");
  ASSERT_NE(magic, std::string::npos);
  text[magic] = 'f';
  std::ofstream(cache_) << text;

  EXPECT_EQ(HeuristicsWith(cache_), 1);
  EXPECT_EQ(HeuristicsWith(cache_), 0);
}

TEST_F(GemmTest, AFileOfSomebodyElseIsLeftAloneWithOneWarning) {
  std::filesystem::create_directories(folder_);
  std::ofstream(cache_) << "a diary\n";

  EXPECT_EQ(HeuristicsWith(cache_), 1);

  ASSERT_EQ(Warnings().size(), 1U);
  EXPECT_NE(Warnings()[0].find(cache_), std::string::npos) << Warnings()[0];
  std::string text;
  std::getline(std::ifstream(cache_), text);
  EXPECT_EQ(text, "a diary");
}

TEST_F(GemmTest, AFileThatCannotBeWrittenIsOneWarning) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "file") << "";
  const std::string inside_a_file = folder_ / "file" / "cache";
  const GemmHandle gemm({.cache_path = inside_a_file.c_str()});

  for (const int64_t rows : {1, 2, 3}) {
    Operands<Bf16, Bf16> operands(rows, /*has_bias=*/false);
    ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);
  }

  EXPECT_EQ(Warnings().size(), 1U);
}

// ---- Batch-invariant products
// --------------------------------------------------------------------

constexpr int64_t kMostRows = 300;
constexpr int64_t kRowCounts[] = {1, 2, 7, 8, 9, 64, 100, 255, 256, 257, kMostRows};

// Every row of a batch of `rows` has the bits that it has alone.
template <typename T, typename Y>
void ExpectInvariant() {
  const GemmHandle gemm({.batch_invariant = 1});
  Operands<T, Y> operands(kMostRows, /*has_bias=*/true);
  std::vector<Y> alone;
  DeviceArray<Y> row(kOutFeatures);
  for (int64_t m = 0; m < operands.rows(); ++m) {
    ASSERT_EQ(RunGemm(gemm.get(), operands.Rows(m, 1, row), nullptr), 0);
    const std::vector<Y> values = row.ToHost();
    alone.insert(alone.end(), values.begin(), values.end());
  }
  for (const int64_t rows : kRowCounts) {
    SCOPED_TRACE(testing::Message() << rows << " rows");
    DeviceArray<Y> y(rows * kOutFeatures);
    ASSERT_EQ(RunGemm(gemm.get(), operands.Rows(0, rows, y), nullptr), 0);
    ExpectSameBits(y.ToHost(), std::vector<Y>(alone.begin(), alone.begin() + rows * kOutFeatures));
  }
  std::vector<float> expected = operands.Expected();
  ExpectRowsNear(alone, expected, kOutFeatures, kL2Limit<Y> + 1e-6, kMaxLimit<Y> + 1e-6);
}

TEST_F(GemmTest, InvariantProductsTakeOneAlgorithmWithoutSplitK) {
  ExpectInvariant<Bf16, Bf16>();

  EXPECT_EQ(Fake().heuristics, 1);
  EXPECT_EQ(Fake().last_algorithm, 0);
}

// Rows of 192 bytes in aligned memory are 64-byte aligned, and so are tiles of one row.
TEST_F(GemmTest, TilesAreAlignedAsTheLibraryWasTold) {
  Fake().row_multiple[0] = 8;
  const GemmHandle gemm({.batch_invariant = 1});
  Operands<Bf16, Bf16> operands(/*rows=*/300, /*has_bias=*/false);
  DeviceArray<Bf16> y(300 * kOutFeatures);

  for (const int64_t first : {0, 1, 2, 4}) {
    EXPECT_EQ(RunGemm(gemm.get(), operands.Rows(first, 264, y), nullptr), 0) << first;
  }
}

// The pinned algorithm takes only multiples of a number of rows. Other numbers of rows are padded,
// or cut into tiles of which the last is padded. Another algorithm would take them unpadded, with
// other bits.
TEST_F(GemmTest, RowCountsThatThePinnedAlgorithmDoesNotTakeGiveTheSameBits) {
  for (const int64_t multiple : {2, 8, 64, 256}) {
    SCOPED_TRACE(testing::Message() << "multiples of " << multiple);
    Fake() = {};
    Fake().row_multiple[0] = multiple;

    ExpectInvariant<Bf16, Bf16>();
    ExpectInvariant<F8E4M3, F16>();

    EXPECT_EQ(Fake().last_algorithm, 0);
  }
}

TEST_F(GemmTest, TilesAreNotLargerThanNeeded) {
  Fake().row_multiple[0] = 16;
  const GemmHandle gemm({.batch_invariant = 1});
  Operands<Bf16, Bf16> operands(/*rows=*/17, /*has_bias=*/false);

  ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);

  EXPECT_EQ(Fake().products, 1);
  EXPECT_EQ(Fake().last_rows, 32);
  ExpectRowsNear(operands.y(), operands.Expected(), kOutFeatures, 3e-3, 4e-3);
}

TEST_F(GemmTest, InvariantProductsKeepNoFile) {
  const GemmHandle gemm({.batch_invariant = 1, .cache_path = cache_.c_str()});
  Operands<Bf16, Bf16> operands(/*rows=*/3, /*has_bias=*/false);

  ASSERT_EQ(RunGemm(gemm.get(), operands.Args(), nullptr), 0);

  EXPECT_FALSE(std::filesystem::exists(cache_));
}

}  // namespace
}  // namespace quire::gpu
