// Copies of blocks between pinned host memory and the device, as in swapping. Pieces of one size,
// at places in random order, are copied by a loop of single copies and by one call for all.
// Fractions are relative to one large copy in the same direction.
#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/bench.h"

namespace quire::gpu {
namespace {

enum class Direction : uint8_t { kToDevice, kToHost };

struct Pieces {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> bytes;
};

// Piece i is the i-th on the device, and lies at a random place on the host.
Pieces MakePieces(Direction direction,
                  const PinnedBuffer& host,
                  const Buffer& device,
                  int64_t piece_bytes) {
  std::vector<int64_t> places(static_cast<size_t>(device.bytes() / piece_bytes));
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), std::mt19937(7));
  Pieces pieces;
  for (size_t i = 0; i < places.size(); ++i) {
    void* on_device = device.at(static_cast<int64_t>(i) * piece_bytes);
    void* on_host = host.at(places[i] * piece_bytes);
    pieces.to.push_back(direction == Direction::kToDevice ? on_device : on_host);
    pieces.from.push_back(direction == Direction::kToDevice ? on_host : on_device);
    pieces.bytes.push_back(static_cast<size_t>(piece_bytes));
  }
  return pieces;
}

int CopyOneByOne(const Pieces& pieces, Direction direction, Stream stream) {
  int error = 0;
  for (size_t i = 0; i < pieces.to.size() && error == 0; ++i) {
    error = direction == Direction::kToDevice
                ? CopyToDevice(pieces.to[i], pieces.from[i], pieces.bytes[i], stream)
                : CopyToHost(pieces.to[i], pieces.from[i], pieces.bytes[i], stream);
  }
  return error;
}

class CopyBench {
 public:
  CopyBench(Bench& bench, int64_t bytes) : bench_(bench), host_(bytes), device_(bytes) {
    bench_.Randomize(device_.at(0), DType::kBF16, bytes / SizeOf(DType::kBF16));
  }

  void Measure(Direction direction) {
    const double whole = MeasureWhole(direction);
    std::vector<int64_t> sizes = {32 << 10, 256 << 10, 2 << 20};
    if (bench_.rehearse()) {
      sizes = {4 << 10};
    }
    for (const int64_t piece_bytes : sizes) {
      if (bench_.IsOutOfTime()) {
        return;
      }
      const Pieces pieces = MakePieces(direction, host_, device_, piece_bytes);
      Add(direction, piece_bytes, "one by one", whole, [&] {
        return CopyOneByOne(pieces, direction, bench_.stream());
      });
      Add(direction, piece_bytes, "by one call", whole, [&] {
        return CopyMany(pieces.to.data(),
                        pieces.from.data(),
                        pieces.bytes.data(),
                        pieces.to.size(),
                        bench_.stream());
      });
    }
  }

 private:
  static std::string Name(Direction direction) {
    return direction == Direction::kToDevice ? "host to device" : "device to host";
  }

  // Returns the microseconds that one copy of all bytes takes.
  double MeasureWhole(Direction direction) {
    const auto bytes = static_cast<size_t>(device_.bytes());
    return bench_
        .MeasureEagerly([&](int) {
          return direction == Direction::kToDevice
                     ? CopyToDevice(device_.at(0), host_.at(0), bytes, bench_.stream())
                     : CopyToHost(host_.at(0), device_.at(0), bytes, bench_.stream());
        })
        .median_us;
  }

  void Add(Direction direction,
           int64_t piece_bytes,
           const std::string& how,
           double whole_us,
           const std::function<int()>& copy) {
    Figure figure(
        "copies",
        Name(direction) + ", pieces of " + std::to_string(piece_bytes >> 10) + " KiB " + how);
    if (const int error = copy(); error != 0) {
      figure.note = std::string("not possible: ") + ErrorText(error);
      bench_.Add(figure);
      return;
    }
    bench_.Wait();
    figure.Param("direction", Name(direction)).Param("piece_bytes", piece_bytes);
    figure.Param("how", how);
    double enqueue_us = 0.0;
    figure.timing = bench_.MeasureEagerly([&](int) {
      const auto begin = std::chrono::steady_clock::now();
      const int error = copy();
      const std::chrono::duration<double, std::micro> spent =
          std::chrono::steady_clock::now() - begin;
      enqueue_us = spent.count();
      return error;
    });
    figure.Param("host_us", enqueue_us);
    figure.work.bytes = static_cast<double>(device_.bytes());
    figure.floor_us = whole_us;
    bench_.Add(figure);
  }

  Bench& bench_;
  PinnedBuffer host_;
  Buffer device_;
};

}  // namespace

void MeasureCopies(Bench& bench) {
  constexpr int64_t kMebi = int64_t{1} << 20;
  CopyBench copies(bench, bench.rehearse() ? 64 << 10 : (bench.quick() ? 64 : 256) * kMebi);
  copies.Measure(Direction::kToHost);
  copies.Measure(Direction::kToDevice);
}

}  // namespace quire::gpu
