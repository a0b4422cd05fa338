// Windows onto a pool (kernels/cuda/windows.h). Measures the mapping calls, in microseconds of host
// time per block. Checks that a window reads the bytes that were written through the pool. Compares
// attention through windows with attention through block tables, over the same blocks.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/windows.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/bench_attention.h"

namespace quire::gpu {
namespace {

constexpr double kMaxError = 8e-3;  // as in attention_in_turn.cc

class WindowBench {
 public:
  // Uses blocks of 32 layers of an 8B model. Each block has 2 MiB, a page.
  explicit WindowBench(Bench& bench)
      : bench_(bench),
        shape_(bench.rehearse() ? AttentionShape{4, 2, 64} : AttentionShape{}),
        layers_{.num_layers = bench.rehearse() ? 1 : 32},
        batch_size_(bench.Small(64, 2)),
        seq_len_(bench.Small(4096, 40)) {}  // NOLINT(*-magic-numbers)
  ~WindowBench() { Require(DestroyWindows(windows_.handle), "destroy windows"); }
  WindowBench(const WindowBench&) = delete;
  WindowBench& operator=(const WindowBench&) = delete;

  // Returns false if the device has no windows or too little memory.
  bool Create() {
    size_t page_bytes = 0;
    Require(WindowPageBytes(&page_bytes), "window page bytes");
    block_bytes_ = SwizzledRows({.num_layers = layers_.num_layers,
                                 .num_kv_heads = shape_.num_kv_heads,
                                 .head_dim = shape_.head_dim,
                                 .block_size_tokens = shape_.block_size_tokens,
                                 .dtype = shape_.cache_dtype})
                       .block_bytes();
    if (page_bytes == 0 || block_bytes_ % static_cast<int64_t>(page_bytes) != 0) {
      bench_.report().Say("  no windows for blocks of " + std::to_string(block_bytes_) + " bytes");
      return false;
    }
    const int64_t blocks_a_sequence =
        (seq_len_ + shape_.block_size_tokens - 1) / shape_.block_size_tokens;
    num_blocks_ = batch_size_ * blocks_a_sequence + 1;
    const auto begin = std::chrono::steady_clock::now();
    const int error = CreateWindows({.block_bytes = static_cast<size_t>(block_bytes_),
                                     .num_blocks = num_blocks_,
                                     .num_places = 2 * num_blocks_},
                                    &windows_);
    if (error != 0) {
      bench_.report().Say(std::string("  windows: ") + ErrorText(error));
      return false;
    }
    Add("make a block of the pool", {MicrosecondsSince(begin) / static_cast<double>(num_blocks_)});
    return true;
  }

  // Maps places that attention does not use.
  void MeasureCalls() {
    for (const int64_t count : {1, 64}) {
      const int64_t run = std::min(count, num_blocks_ / 2);
      const std::string blocks = std::to_string(run) + (run == 1 ? " block" : " blocks at once");
      Time("map " + blocks, run, [&](int64_t place) { Map(place, 0, run); });
      Time("map anew " + blocks, run, [&](int64_t place) { Map(place, 1, run); });
      Time("unmap " + blocks, run, [&](int64_t place) {
        Require(UnmapPlaces(windows_.handle, place, run), "unmap");
      });
    }
  }

  void MeasureAttention() {
    KvPool pool(bench_, windows_.pool, num_blocks_ * block_bytes_);
    CheckAliases(pool);
    MeasureDecode(pool);
    MeasurePrefill(pool);
  }

 private:
  using Attend = std::function<int(const PagedAttentionParams&)>;

  static double MicrosecondsSince(std::chrono::steady_clock::time_point begin) {
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - begin;
    return spent.count();
  }

  void Map(int64_t place, BlockId block, int64_t count) const {
    Require(MapPlaces(windows_.handle, place, block, count), "map");
  }

  // Calls `call` for one run of places after the other. Measures microseconds per block.
  void Time(const std::string& name, int64_t run, const std::function<void(int64_t)>& call) {
    constexpr int64_t kRepeats = 32;
    std::vector<double> us;
    for (int64_t i = 0; i < kRepeats && num_blocks_ + (i + 1) * run <= 2 * num_blocks_; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      call(num_blocks_ + i * run);
      us.push_back(MicrosecondsSince(begin) / static_cast<double>(run));
    }
    Add(name, us);
  }

  void Add(const std::string& name, std::vector<double> us) {
    std::sort(us.begin(), us.end());
    Figure figure("windows", name + ", a block, on the host");
    figure.timing = {.median_us = us[us.size() / 2],
                     .min_us = us.front(),
                     .max_us = us.back(),
                     .num_repeats = static_cast<int>(us.size()),
                     .num_calls = 1,
                     .num_sets = 1};
    bench_.Add(figure);
  }

  std::optional<AttentionBatch> MakeBatch(KvPool& pool, const SequenceLengths& lengths) {
    const std::vector<SequenceLengths> sequences(static_cast<size_t>(batch_size_), lengths);
    auto batch = AttentionBatch::Make(bench_, pool, shape_, sequences, layers_);
    if (!batch.has_value()) {
      bench_.report().Say("  windows: not enough memory");
      return batch;
    }
    const std::vector<BlockId> tables = batch->BlockTables();
    const int64_t width = batch->Args(0).max_blocks_per_seq;
    std::vector<int64_t> places;
    for (int64_t seq = 0; seq < batch_size_; ++seq) {
      places.push_back(seq * width);
    }
    for (int64_t place = 0; place < batch_size_ * width; ++place) {
      Map(place, tables[static_cast<size_t>(place)], 1);
    }
    first_places_ = Buffer::Of(places);
    return batch;
  }

  PagedAttentionParams Through(bool windows, const AttentionBatch& batch, int set) const {
    PagedAttentionParams params = batch.Args(set);
    if (windows) {
      params.block_tables = nullptr;
      params.first_places = first_places_.as<int64_t>();
      params.cache.windows = windows_.places;
    }
    return params;
  }

  // Each repeat uses other numbers. A kernel writes them through the pool right before they are
  // read.
  void CheckAliases(KvPool& pool) {
    constexpr int kRepeats = 20;
    auto batch = MakeBatch(pool, {.query_len = 1, .seq_len = seq_len_});
    if (!batch.has_value()) {
      return;
    }
    const DecodeScratch scratch = DecodeScratch::MakeFastest(bench_, *batch);
    const DecodePlan& plan = scratch.plan();
    Buffer other_out(batch->out_bytes_a_set());
    int num_different = 0;
    for (int i = 0; i < kRepeats; ++i) {
      bench_.Randomize(pool.data(), shape_.cache_dtype, pool.bytes() / SizeOf(shape_.cache_dtype));
      PagedAttentionParams params = Through(true, *batch, 0);
      Require(Decode(params, plan, shape_.dtype, bench_.stream()), "decode");
      params = Through(false, *batch, 0);
      params.out = other_out.at(0);
      Require(Decode(params, plan, shape_.dtype, bench_.stream()), "decode");
      bench_.Wait();
      const bool is_equal = bench_.IsEqual(batch->Args(0).out, other_out.at(0), other_out.bytes());
      num_different += is_equal ? 0 : 1;
    }
    Figure figure("windows", "what a kernel wrote through the pool, read through windows");
    figure.ok = num_different == 0;
    figure.note = std::to_string(num_different) + " of " + std::to_string(kRepeats) +
                  " reads have other bits than by block tables";
    bench_.Add(figure);
  }

  void MeasureDecode(KvPool& pool) {
    auto batch = MakeBatch(pool, {.query_len = 1, .seq_len = seq_len_});
    if (!batch.has_value()) {
      return;
    }
    const DecodeScratch scratch = DecodeScratch::MakeFastest(bench_, *batch);
    const DecodePlan& plan = scratch.plan();
    const auto attend = [&](const PagedAttentionParams& params) {
      return Decode(params, plan, shape_.dtype, bench_.stream());
    };
    Compare("decode", *batch, attend);
    MeasureBesideMapping(*batch, attend);
  }

  // Decodes while another thread maps the first blocks of new sequences, as a worker does during
  // its steps (worker/kv_cache/kv_windows.h). Uses no graphs, so that no mapping call falls into a
  // recording.
  void MeasureBesideMapping(const AttentionBatch& batch, const Attend& attend) {
    for (const bool maps : {false, true}) {
      std::atomic<bool> is_over = !maps;
      std::vector<double> us;
      std::thread mapper([&] { MapAnewUntil(is_over, us); });
      Figure figure(
          "windows",
          std::string("decode without a graph") + (maps ? ", beside a thread that maps" : ""));
      figure.timing =
          bench_.MeasureEagerly([&](int set) { return attend(Through(true, batch, set)); });
      is_over = true;
      mapper.join();
      bench_.Add(figure);
      if (maps && !us.empty()) {
        Add("map anew 16 blocks beside decodes", us);
      }
    }
  }

  // Maps single blocks, one after the other, into places that attention does not use.
  void MapAnewUntil(const std::atomic<bool>& is_over, std::vector<double>& us) const {
    constexpr int64_t kNumSpareBlocks = 16;
    const int64_t count = std::min(kNumSpareBlocks, num_blocks_ / 2);
    Require(SetDevice(0), "set the thread's device");
    for (BlockId first = 0; !is_over; first = first == 0 ? 1 : 0) {
      const auto begin = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < count; ++i) {
        Map(num_blocks_ + i, static_cast<BlockId>(first + i), 1);
      }
      us.push_back(MicrosecondsSince(begin) / static_cast<double>(count));
    }
  }

  void MeasurePrefill(KvPool& pool) {
    const int32_t chunk = bench_.Small(128, 8);  // NOLINT(*-magic-numbers)
    auto batch = MakeBatch(pool, {.query_len = chunk, .seq_len = seq_len_});
    if (!batch.has_value()) {
      return;
    }
    const PrefillScratch scratch(*batch, {});
    Compare("prefill of " + std::to_string(chunk), *batch, [&](const PagedAttentionParams& params) {
      return Prefill(params, scratch.plan(), shape_.dtype, bench_.stream());
    });
  }

  void Compare(const std::string& what, const AttentionBatch& batch, const Attend& attend) {
    for (const bool windows : {false, true}) {
      Figure figure("windows",
                    what + ", " + shape_.Name() + ", " + std::to_string(batch_size_) + " x " +
                        std::to_string(seq_len_) + (windows ? ", windows" : ", block tables"));
      shape_.AddParams(figure);
      figure.Param("windows", windows);
      figure.timing = bench_.Measure(batch.num_sets(),
                                     [&](int set) { return attend(Through(windows, batch, set)); });
      figure.work = batch.LeastWork();
      figure.error = batch.ProbedError(bench_);
      figure.ok = figure.error <= kMaxError && batch.IsFinite(bench_);
      bench_.Add(figure);
    }
  }

  Bench& bench_;
  const AttentionShape shape_;
  const PoolLayers layers_;
  const int32_t batch_size_;
  const int32_t seq_len_;
  int64_t block_bytes_ = 0;
  int64_t num_blocks_ = 0;
  Windows windows_;
  Buffer first_places_{0};
};

}  // namespace

void MeasureWindows(Bench& bench) {
  WindowBench windows(bench);
  if (windows.Create()) {
    windows.MeasureCalls();
    windows.MeasureAttention();
  }
}

}  // namespace quire::gpu
