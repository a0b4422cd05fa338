#include "kernels/gpu/nccl_group.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/cpu_pause.h"
#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/lossy_writer.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

// Bounds the unfinished collectives on the stream. If the stream were full, the host would block
// and could not notice a lost rank. Streams have room for far more operations than this.
constexpr int kMaxUnderWay = 64;
constexpr int64_t kSpin = 50 * kNanosPerMicro;
constexpr auto kNap = std::chrono::microseconds(20);

// The message that each rank sends to all other ranks before an NCCL communicator is created.
struct GpuOfRank {
  uint32_t has_nccl = 0;
  std::array<uint32_t, 4> uuid = {};
};

absl::Status Broken(const std::string& rule) {
  return Error(absl::StatusCode::kUnavailable, "GROUP_BROKEN", rule);
}

// Returns the reason why these ranks cannot use NCCL, or null if they can.
const char* WhyNcclIsUnusable(const std::vector<GpuOfRank>& ranks) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].has_nccl == 0) {
      return "a rank has no NCCL";
    }
    for (size_t k = 0; k < i; ++k) {
      if (ranks[i].uuid == ranks[k].uuid) {
        return "ranks share a GPU";
      }
    }
  }
  return nullptr;
}

std::vector<GpuOfRank> GpusOf(Communicator& ranks, const GpuOfRank& own) {
  std::vector<GpuOfRank> all(static_cast<size_t>(ranks.size()));
  all[static_cast<size_t>(ranks.rank())] = own;
  static_assert(sizeof(GpuOfRank) == 5 * sizeof(uint32_t));
  ranks.AllReduceBits(std::span(reinterpret_cast<uint32_t*>(all.data()), 5 * all.size()));
  return all;
}

[[noreturn]] void ExitHung() {
  LogError("NCCL does not end; the worker exits");
  ExitNow(kExitDevice);
}

}  // namespace

NcclGroup::NcclGroup(const GpuLibrary& library,
                     gpu::Stream stream,
                     std::shared_ptr<Communicator> ranks,
                     GpuScratch& parts,
                     std::function<void()> before_end)
    : api_(library.api()),
      device_(library.device().index),
      stream_(stream),
      ranks_(std::move(ranks)),
      before_end_(std::move(before_end)),
      parts_(parts) {
  Require(api_.create_event(&done_), "create event");
}

NcclGroup::~NcclGroup() {
  Finish();
  End();
  Require(api_.destroy_event(done_), "destroy event");
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Join(const GpuLibrary& library,
                                                           gpu::Stream stream,
                                                           std::shared_ptr<Communicator> ranks,
                                                           GpuScratch& parts,
                                                           std::function<void()> before_end,
                                                           int64_t timeout_ns) {
  GpuOfRank own;
  own.has_nccl = library.api().open_nccl(/*path=*/nullptr) == 0 ? 1 : 0;
  static_assert(sizeof(own.uuid) == sizeof(library.device().uuid));
  std::memcpy(own.uuid.data(), library.device().uuid, sizeof(own.uuid));
  const std::vector<GpuOfRank> all = GpusOf(*ranks, own);
  QUIRE_RETURN_IF_ERROR(ranks->status());
  if (const char* why = WhyNcclIsUnusable(all); why != nullptr) {
    LogInfo("ranks run collectives through host memory", {{"why_not_nccl", why}});
    return nullptr;
  }
  std::unique_ptr<NcclGroup> group(
      new NcclGroup(library, stream, std::move(ranks), parts, std::move(before_end)));
  QUIRE_RETURN_IF_ERROR(group->Connect(timeout_ns));
  return group;
}

absl::Status NcclGroup::Connect(int64_t timeout_ns) {
  struct Invitation {
    int32_t error = 0;
    gpu::DeviceGroupId id = {};
  } invitation;
  if (ranks_->rank() == 0) {
    invitation.error = api_.make_device_group_id(&invitation.id);
  }
  ranks_->Broadcast(std::as_writable_bytes(std::span(&invitation, 1)));
  QUIRE_RETURN_IF_ERROR(ranks_->status());
  const int error =
      invitation.error != 0
          ? invitation.error
          : api_.begin_device_group(invitation.id, ranks_->rank(), ranks_->size(), &group_);
  if (error != 0) {
    Break("connect", api_.error_text(error));
    return ranks_->status();
  }
  WaitUntil([] { return true; }, SteadyNow() + timeout_ns, "connect");
  return ranks_->status();
}

void NcclGroup::AllReduce(const AllReduceParams& params) {
  QUIRE_CHECK(params.bias == nullptr);
  if (is_whole()) {
    Settle(api_.all_reduce_over_group(group_,
                                      params.data,
                                      params.num_rows * params.width,
                                      params.dtype,
                                      params.merge,
                                      stream_),
           "AllReduce");
  }
}

void NcclGroup::Gather(const GatherParams& params) {
  counts_.clear();
  for (const int64_t width : params.widths) {
    counts_.push_back(params.num_rows * width);
  }
  if (ranks_->rank() == 0) {
    ReceiveParts(params);
  } else if (is_whole()) {
    const int64_t count = counts_[static_cast<size_t>(ranks_->rank())];
    Settle(api_.send_to_group(group_, params.part, count, /*to_rank=*/0, stream_), "Gather");
  }
}

void NcclGroup::ReceiveParts(const GatherParams& params) {
  const int64_t whole_width =
      std::accumulate(params.widths.begin(), params.widths.end(), int64_t{0});
  const int64_t bytes = ReceivedBytes(params.num_rows, whole_width, params.widths[0]);
  if (bytes > parts_.capacity_bytes()) {
    Finish();  // else freeing the old memory would hang if a rank is lost
    RequireMemory(parts_.Reserve(bytes));
  }
  auto* parts = static_cast<float*>(parts_.data());
  if (is_whole()) {
    Settle(api_.receive_from_group(group_, parts, counts_.data(), ranks_->size(), stream_),
           "Gather");
  }
  float* to = params.whole;
  const float* from = params.part;
  for (const int64_t width : params.widths) {
    Require(api_.copy_columns({.to = to,
                               .to_stride = whole_width,
                               .from = from,
                               .from_stride = width,
                               .num_rows = params.num_rows,
                               .width = width},
                              stream_),
            "put columns together");
    from = to == params.whole ? parts : from + params.num_rows * width;
    to += width;
  }
}

void NcclGroup::Settle(int error, const char* what) {
  if (error != 0) {
    Break(what, api_.error_text(error));
    return;
  }
  WaitUntil([] { return true; }, kInfiniteFuture, what);
  if (!is_recording_ && ++num_under_way_ >= kMaxUnderWay) {
    Finish();
  }
}

void NcclGroup::EndRecording() {
  is_recording_ = false;
  if (std::exchange(is_broken_, false)) {
    End();
  }
}

void NcclGroup::Finish() {
  if (group_ == nullptr || is_recording_ || num_under_way_ == 0) {
    return;
  }
  num_under_way_ = 0;
  Require(api_.record_event(done_, stream_), "record event");
  const auto is_done = [this] {
    bool has_happened = false;
    Require(api_.query_event(done_, &has_happened), "step");
    return has_happened;
  };
  WaitUntil(is_done, kInfiniteFuture, "step");
}

void NcclGroup::WaitUntil(absl::FunctionRef<bool()> is_done, Instant deadline, const char* what) {
  const Instant begin = SteadyNow();
  bool naps = false;
  while (is_whole()) {
    bool is_settled = false;
    if (const int error = api_.poll_device_group(group_, &is_settled); error != 0) {
      Break(what, api_.error_text(error));
      break;
    }
    if (is_settled && is_done()) {
      break;
    }
    if (!naps && SteadyNow() - begin < kSpin) {
      CpuPause();
      continue;
    }
    if (!naps) {
      ranks_->SetWaiting(true);
      naps = true;
    }
    if (!ranks_->CheckLinks()) {
      Break(what, "a rank is lost");
    } else if (SteadyNow() >= deadline) {
      Break(what, "timed out");
    }
    std::this_thread::sleep_for(kNap);
  }
  if (naps) {
    ranks_->SetWaiting(false);
  }
}

void NcclGroup::Break(const char* what, const char* why) {
  LogWarning("the NCCL group is aborted", {{"operation", what}, {"why", why}});
  ranks_->Break(Broken("rank " + std::to_string(ranks_->rank()) + ": NCCL: " + what + ": " + why));
  if (is_recording_) {
    is_broken_ = true;
  } else {
    End();
  }
}

void NcclGroup::End() {
  if (group_ == nullptr) {
    return;
  }
  before_end_();
  const Instant deadline = SteadyNow() + kMaxEnd;
  void* group = std::exchange(group_, nullptr);
  // Runs on a separate thread, because end_device_group may hang if another rank or the network
  // hangs.
  std::future<int> ended = std::async(std::launch::async, [this, group] {
    const int error = api_.set_device(device_);
    return error != 0 ? error : api_.end_device_group(group);
  });
  if (ended.wait_for(std::chrono::nanoseconds(kMaxEnd)) == std::future_status::timeout) {
    ExitHung();
  }
  // An error is only logged: NCCL may have leaked memory, but the communicator is not used any
  // more.
  if (const int error = ended.get(); error != 0) {
    LogWarning("NCCL reported an error when it ended", {{"text", api_.error_text(error)}});
  }
  Require(api_.record_event(done_, stream_), "record event");
  for (bool has_happened = false; !has_happened;) {
    Require(api_.query_event(done_, &has_happened), "end of NCCL");
    if (SteadyNow() >= deadline) {
      ExitHung();
    }
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace quire
