// Compares the dynamic shared memory that the attention kernels ask for with the classes of GPUs
// (device/capability.h). Kernels must give the same bits with the least shared memory. Sampling
// asks for the most among the other kernels.
#include <cstdint>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/decode_lines.cuh"
#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/paged_decode.cuh"
#include "kernels/cuda/paged_prefill.cuh"
#include "kernels/cuda/paged_prefill_wgmma.cuh"
#include "kernels/cuda/prefill_persistent.cuh"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/sample_request.h"

namespace quire::gpu {
namespace {

constexpr int32_t kLimits[] = {kLeastSharedBytes, kMiddleSharedBytes, kMostSharedBytes};
constexpr char kTableFile[] = "tests/kernels/cuda/shared_memory.txt";
constexpr char kHead[] =
    "# Bytes of dynamic shared memory of a CTA of each kernel of attention (activations, cache,\n"
    "# head_dim), where a CTA may have 101376 (compute capability 8.6, 8.9, 12.x), 166912 (8.0, "
    "8.7)\n"
    "# and 232448 (9.0, 10.x). -: does not run there.\n";

class SharedMemoryTest : public testing::Test {
 protected:
  void TearDown() override { emulator::SetSharedBytesLimit(kMostSharedBytes); }
};

// ---- The table ----------------------------------------------------------------------------------

template <typename T>
const char* NameOf() {
  return std::is_same_v<T, Bf16> ? "bf16" : std::is_same_v<T, F16> ? "f16" : "e4m3";
}

struct Row {
  std::string kernel;
  std::vector<int64_t> bytes;  // by limit; 0: does not run there
};

// bytes_of<kMaxSharedBytes>() is the shared memory of the version for that limit.
template <typename T, typename Cache, int kHeadDim, int kMostBytes, typename BytesOf>
Row RowOf(const char* kernel, BytesOf bytes_of) {
  Row row;
  row.kernel = std::string(kernel) + " " + NameOf<T>() + " " + NameOf<Cache>() + " " +
               std::to_string(kHeadDim);
  for (const int32_t limit : kLimits) {
    emulator::SetSharedBytesLimit(static_cast<size_t>(limit));
    row.bytes.push_back(DispatchSharedBytes<kMostBytes>(bytes_of));
  }
  return row;
}

// Decode by lines runs on compute capability 9.0 and 10.x alone.
template <typename T, typename Cache, int kHeadDim, int kRows>
void AddLineRows(std::vector<Row>& rows) {
  const std::string kernel = "decode_lines_" + std::to_string(kRows);
  Row row = RowOf<T, Cache, kHeadDim, 0>(
      kernel.c_str(), []<int>() { return LineShape<T, Cache, kHeadDim, kRows>::kSharedBytes; });
  row.bytes[0] = row.bytes[1] = 0;
  rows.push_back(row);
}

template <typename T, typename Cache, int kHeadDim>
void AddRows(std::vector<Row>& rows) {
  rows.push_back(RowOf<T, Cache, kHeadDim, DecodeShape<Cache, kHeadDim>::kSharedBytes>(
      "decode", []<int kMaxSharedBytes>() {
        return DecodeShape<Cache, kHeadDim, kMaxSharedBytes>::kSharedBytes;
      }));
  AddLineRows<T, Cache, kHeadDim, 16>(rows);
  if constexpr (kHeadDim <= 128) {
    AddLineRows<T, Cache, kHeadDim, 32>(rows);
    AddLineRows<T, Cache, kHeadDim, 64>(rows);
  }
  rows.push_back(RowOf<T, Cache, kHeadDim, PrefillShape<T, Cache, kHeadDim>::kSharedBytes>(
      "prefill_mma", []<int kMaxSharedBytes>() {
        return PrefillShape<T, Cache, kHeadDim, kMaxSharedBytes>::kSharedBytes;
      }));
  if constexpr (std::is_same_v<T, Cache> && (kHeadDim == 64 || kHeadDim % 128 == 0)) {
    // This kernel runs on compute capability 9.0 alone.
    Row row = RowOf<T, Cache, kHeadDim, 0>(
        "prefill_wgmma", []<int>() { return WgmmaSharedBytes<WgmmaShape<T, kHeadDim>>(); });
    row.bytes[0] = row.bytes[1] = 0;
    rows.push_back(row);
  }
  if constexpr (std::is_same_v<T, Cache>) {
    Row row = RowOf<T, Cache, kHeadDim, 0>(
        "prefill_persistent", []<int>() { return PersistentShape<T, kHeadDim>::kSharedBytes; });
    row.bytes[0] = row.bytes[1] = 0;
    rows.push_back(row);
  }
}

template <typename T, typename Cache>
void AddHeadDims(std::vector<Row>& rows) {
  AddRows<T, Cache, 64>(rows);
  AddRows<T, Cache, 80>(rows);
  AddRows<T, Cache, 96>(rows);
  AddRows<T, Cache, 112>(rows);
  AddRows<T, Cache, 128>(rows);
  AddRows<T, Cache, 256>(rows);
}

std::vector<Row> AllRows() {
  std::vector<Row> rows;
  AddHeadDims<Bf16, Bf16>(rows);
  AddHeadDims<Bf16, F8E4M3>(rows);
  AddHeadDims<F16, F16>(rows);
  AddHeadDims<F16, F8E4M3>(rows);
  return rows;
}

TEST_F(SharedMemoryTest, KernelsFitTheGpusThatTheyRunOn) {
  for (const Row& row : AllRows()) {
    for (size_t i = 0; i < std::size(kLimits); ++i) {
      EXPECT_LE(row.bytes[i], kLimits[i]) << row.kernel;
    }
  }
}

TEST_F(SharedMemoryTest, KernelsAskForWhatTheTableSays) {
  std::ostringstream table;
  table << kHead;
  for (const Row& row : AllRows()) {
    table << std::left << std::setw(28) << row.kernel << std::right;
    for (const int64_t bytes : row.bytes) {
      table << " " << std::setw(7) << (bytes == 0 ? "-" : std::to_string(bytes));
    }
    table << "\n";
  }
  std::ifstream file(kTableFile);
  const std::string expected((std::istreambuf_iterator<char>(file)),
                             std::istreambuf_iterator<char>());

  EXPECT_EQ(table.str(), expected)
      << "If this change is intended, write this to " << kTableFile << ":\n"
      << table.str();
}

// ---- On smaller devices -------------------------------------------------------------------------

AttentionProblem ProblemOf(DType dtype, DType cache_dtype, int32_t head_dim, int32_t query_len) {
  AttentionProblem problem = {.dtype = dtype,
                              .cache_dtype = cache_dtype,
                              .head_dim = head_dim,
                              .num_heads = 2,
                              .num_kv_heads = 1,
                              .sequences = {{.query_len = query_len, .seq_len = 333, .key = 1}}};
  if (cache_dtype == DType::kF8E4M3) {
    problem.k_scale = 0.03F;
    problem.v_scale = 0.25F;
  }
  return problem;
}

int RunDecode(const AttentionProblem& problem, std::vector<uint16_t>* out) {
  const AttentionData data(problem);
  DeviceAttention device(data);
  const DeviceArray<int32_t> split_start(std::vector<int32_t>{0, 1});
  int32_t num_ctas = 0;
  int error = DecodeGridSize(problem.dtype, problem.cache_dtype, problem.head_dim, &num_ctas);
  error = error != 0 ? error
                     : Decode(device.params(),
                              {.num_decodes = 1,
                               .split_tokens = 1 << 20,
                               .split_start = split_start.data(),
                               .num_ctas = num_ctas},
                              problem.dtype,
                              nullptr);
  *out = device.Out();
  return error;
}

// enum: the .cuh files have a kernel of that name.
int RunPrefill(enum PrefillKernel kernel,
               const AttentionProblem& problem,
               std::vector<uint16_t>* out) {
  const AttentionData data(problem);
  DeviceAttention device(data);
  const DeviceArray<PrefillItem> items(
      std::vector<PrefillItem>{{.sequence = 0, .first_row = 0}, {.sequence = 0, .first_row = 128}});
  const int error = Prefill(
      device.params(),
      {.items = items.data(), .num_items = static_cast<int32_t>(items.size()), .kernel = kernel},
      problem.dtype,
      nullptr);
  *out = device.Out();
  return error;
}

// Runs with the most and with the least shared memory, and expects the same bits.
template <typename Run>
void ExpectTheSameWithTheLeast(Run run) {
  std::vector<uint16_t> expected;
  emulator::SetSharedBytesLimit(kMostSharedBytes);
  ASSERT_EQ(run(&expected), 0);
  std::vector<uint16_t> out;
  emulator::SetSharedBytesLimit(kLeastSharedBytes);
  ASSERT_EQ(run(&out), 0);
  EXPECT_EQ(out, expected);
}

TEST_F(SharedMemoryTest, WithTheLeastSharedMemoryAttentionHasTheSameBits) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const DType cache_dtype : {dtype, DType::kF8E4M3}) {
      for (const int32_t head_dim : {64, 80, 96, 112, 128, 256}) {
        SCOPED_TRACE(testing::Message() << head_dim << " " << SizeOf(cache_dtype));
        ExpectTheSameWithTheLeast([&](std::vector<uint16_t>* out) {
          return RunDecode(ProblemOf(dtype, cache_dtype, head_dim, 1), out);
        });
        ExpectTheSameWithTheLeast([&](std::vector<uint16_t>* out) {
          return RunPrefill(PrefillKernel::kMma, ProblemOf(dtype, cache_dtype, head_dim, 100), out);
        });
      }
    }
  }
}

TEST_F(SharedMemoryTest, SamplingRunsWithTheLeastSharedMemory) {
  SampleRequest request;
  request.logits = {1.0F, 3.0F, 2.0F, 0.0F};
  emulator::SetSharedBytesLimit(kLeastSharedBytes);

  EXPECT_EQ(SampleOne(request).token_id, 1);
}

TEST_F(SharedMemoryTest, ALaunchThatAsksForMoreThanThereIsFailsAlsoWhileRecording) {
  const AttentionProblem problem = ProblemOf(DType::kBF16, DType::kBF16, 256, 10);
  std::vector<uint16_t> out;
  emulator::SetSharedBytesLimit(kMiddleSharedBytes);
  EXPECT_EQ(RunPrefill(PrefillKernel::kWgmma, problem, &out), emulator::kErrorInvalidValue);

  const AttentionData data(problem);
  DeviceAttention device(data);
  const DeviceArray<PrefillItem> items(std::vector<PrefillItem>(1));
  Stream stream = nullptr;
  ASSERT_EQ(CreateStream(&stream), 0);
  ASSERT_EQ(BeginGraph(stream), 0);
  EXPECT_EQ(Prefill(device.params(),
                    {.items = items.data(), .num_items = 1, .kernel = PrefillKernel::kWgmma},
                    problem.dtype,
                    stream),
            emulator::kErrorInvalidValue);
  Graph graph = nullptr;
  ASSERT_EQ(EndGraph(stream, &graph), 0);
  ASSERT_EQ(DestroyGraph(graph), 0);
  ASSERT_EQ(DestroyStream(stream), 0);
}

}  // namespace
}  // namespace quire::gpu
