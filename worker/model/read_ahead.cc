#include "worker/model/read_ahead.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

// Alignment of tensors in the ring, in bytes: the size of a cache line and of the widest vector
// register.
constexpr int64_t kTensorAlignment = 64;
constexpr unsigned kMaxReaders = 8;

int64_t BytesOf(const TensorGroup& group, const TensorSource& source) {
  int64_t bytes = 0;
  for (const TensorShape& tensor : group) {
    bytes += RoundUp(BytesOf(tensor, source), kTensorAlignment);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReadAhead>> ReadAhead::Start(const TensorSource& source,
                                                            std::vector<TensorGroup> groups,
                                                            KernelBackend& backend,
                                                            int64_t min_ring_bytes) {
  int64_t largest = 1;
  int64_t all = 0;
  for (const TensorGroup& group : groups) {
    largest = std::max(largest, BytesOf(group, source));
    all += BytesOf(group, source);
  }
  std::unique_ptr<ReadAhead> reader(new ReadAhead(source));
  reader->ring_bytes_ = std::max(largest, std::min(all, min_ring_bytes));
  QUIRE_ASSIGN_OR_RETURN(reader->ring_, backend.AllocateHost(reader->ring_bytes_));
  reader->Place(std::move(groups));
  const unsigned num_threads = std::clamp(std::thread::hardware_concurrency(), 2U, kMaxReaders);
  for (unsigned i = 0; i < num_threads; ++i) {
    reader->threads_.emplace_back([raw = reader.get()] { raw->ReadPieces(); });
  }
  return reader;
}

ReadAhead::~ReadAhead() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ReadAhead::Place(std::vector<TensorGroup> groups) {
  // No thread runs yet; the lock satisfies the thread safety analysis.
  const MutexLock lock(mutex_);
  int64_t at = 0;
  for (TensorGroup& group : groups) {
    const int64_t bytes = BytesOf(group, source_);
    if (at % ring_bytes_ + bytes > ring_bytes_) {
      at = RoundUp(at, ring_bytes_);  // else the group would wrap around at the ring's end
    }
    PlacedGroup placed = {
        .first_tensor = tensors_.size(), .end_tensor = 0, .begin = at, .end = at + bytes};
    const size_t first_piece = pieces_.size();
    for (TensorShape& tensor : group) {
      const int64_t tensor_bytes = BytesOf(tensor, source_);
      const int64_t block_bytes = InfoOf(source_.format(tensor.name)).block_bytes;
      const int64_t piece_bytes = TensorSource::kPieceBytes / block_bytes * block_bytes;
      for (int64_t begin = 0; begin < tensor_bytes; begin += piece_bytes) {
        pieces_.push_back({.tensor = tensors_.size(),
                           .begin = begin,
                           .bytes = std::min(piece_bytes, tensor_bytes - begin)});
      }
      tensors_.push_back({.shape = std::move(tensor),
                          .bytes = tensor_bytes,
                          .group = groups_.size(),
                          .place = at % ring_bytes_});
      at += RoundUp(tensor_bytes, kTensorAlignment);
    }
    placed.end_tensor = tensors_.size();
    groups_.push_back(placed);
    pieces_left_.push_back(pieces_.size() - first_piece);
  }
  errors_.resize(groups_.size());
  bytes_read_.resize(groups_.size());
}

bool ReadAhead::CanGoOn() const {
  if (is_stopping_ || next_piece_ == pieces_.size()) {
    return true;
  }
  const PlacedGroup& group = groups_[tensors_[pieces_[next_piece_].tensor].group];
  return group.end - freed_ <= ring_bytes_;
}

void ReadAhead::ReadPieces() {
  MutexLock lock(mutex_);
  while (true) {
    while (!CanGoOn()) {
      changed_.Wait(mutex_);
    }
    if (is_stopping_ || next_piece_ == pieces_.size()) {
      return;
    }
    const Piece& piece = pieces_[next_piece_++];
    const PlacedTensor& tensor = tensors_[piece.tensor];
    auto* to = static_cast<std::byte*>(ring_->data()) + tensor.place + piece.begin;
    lock.Unlock();
    const absl::Status status =
        source_.Read(tensor.shape, piece.begin, std::span(to, static_cast<size_t>(piece.bytes)));
    lock.Lock();
    errors_[tensor.group].Update(status);
    --pieces_left_[tensor.group];
    bytes_read_[tensor.group] += piece.bytes;
    ++num_pieces_read_;
    changed_.NotifyAll();
  }
}

absl::StatusOr<std::vector<std::span<const std::byte>>> ReadAhead::Next(
    const std::function<void(int64_t bytes)>& tick) {
  MutexLock lock(mutex_);
  QUIRE_CHECK(next_group_ < groups_.size());
  const PlacedGroup& group = groups_[next_group_];
  freed_ = group.begin;  // the caller is done with the previous group
  changed_.NotifyAll();
  while (pieces_left_[next_group_] != 0) {
    const size_t seen = num_pieces_read_;
    const int64_t bytes = bytes_read_[next_group_];
    lock.Unlock();
    tick(bytes);
    lock.Lock();
    while (num_pieces_read_ == seen) {
      changed_.Wait(mutex_);
    }
  }
  QUIRE_RETURN_IF_ERROR(errors_[next_group_]);
  ++next_group_;
  std::vector<std::span<const std::byte>> spans;
  for (size_t i = group.first_tensor; i < group.end_tensor; ++i) {
    const auto* data = static_cast<const std::byte*>(ring_->data()) + tensors_[i].place;
    spans.emplace_back(data, static_cast<size_t>(tensors_[i].bytes));
  }
  return spans;
}

std::unique_ptr<DeviceMemory> ReadAhead::TakeBuffer() {
  const MutexLock lock(mutex_);
  QUIRE_CHECK(groups_.size() == 1 && next_group_ == 1);
  return std::move(ring_);
}

}  // namespace quire
