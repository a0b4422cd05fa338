#include "tests/kernels/cuda/fake_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include <nccl.h>

#include "tests/kernels/cuda/fake_cublaslt_element.h"

namespace {

using quire::DType;
using quire::gpu::FakeNccl;
using quire::gpu::LoadElement;
using quire::gpu::StoreElement;
using Bytes = std::vector<std::byte>;

constexpr int kPollsToSettle = 2;

// Properties in which the n-th AllReduce of all ranks must agree.
struct Kind {
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;

  friend bool operator==(const Kind&, const Kind&) = default;
};

struct Reduction {
  Kind kind;
  std::map<int, Bytes> parts;  // of the ranks whose streams have come to it
};

struct Group {
  int size = 0;
  std::set<int> ranks;
  std::vector<std::shared_ptr<Reduction>> reductions;
  std::map<std::pair<int, int>, std::deque<Bytes>> messages;  // by sender and receiver
};

struct Message {
  bool is_send = false;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  int peer = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};

std::mutex mutex;
std::vector<std::string> mistakes;
std::set<ncclComm_t> live;
uint64_t num_ids = 0;
int num_under_way = 0;
thread_local bool is_in_group = false;
thread_local std::vector<Message> fused;

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name.
struct ncclComm {
  std::shared_ptr<Group> group;
  int rank = 0;
  size_t next_reduction = 0;
  int polls_left = kPollsToSettle;
  bool is_connected = false;
  std::function<int()> enqueue;  // what is in progress
  std::shared_ptr<std::atomic<bool>> has_ended = std::make_shared<std::atomic<bool>>(false);
};

namespace {

std::map<uint64_t, std::shared_ptr<Group>>& Groups() {
  static auto& groups = *new std::map<uint64_t, std::shared_ptr<Group>>();
  return groups;
}

std::vector<std::string> TakeMistakes() {
  const std::lock_guard<std::mutex> lock(mutex);
  return std::exchange(mistakes, {});
}

FakeNccl fake;

ncclResult_t Mistake(const std::string& what) {
  mistakes.push_back(what);
  return ncclInvalidUsage;
}

// Returns an error if the communicator is unknown, has ended, or has a call in progress.
ncclResult_t CheckFree(ncclComm_t comm, const char* what) {
  if (!live.contains(comm)) {
    return Mistake(std::string(what) + ": an unknown communicator, or one that has ended");
  }
  if (!comm->is_connected || comm->polls_left > 0) {
    return Mistake(std::string(what) + ": the call before is in progress");
  }
  return ncclSuccess;
}

// Puts an operation on the stream, and counts the operations on all streams, without those of
// graphs.
int Enqueue(cudaStream_t stream,
            const void* memory,
            std::function<bool()> is_ready,
            const std::function<void()>& run) {
  const int counted = fake.is_recording(stream) ? 0 : 1;
  num_under_way += counted;
  fake.most_under_way = std::max(fake.most_under_way.load(), num_under_way);
  return fake.enqueue(stream, memory, std::move(is_ready), [run, counted] {
    const std::lock_guard<std::mutex> lock(mutex);
    num_under_way -= counted;
    run();
    return 0;
  });
}

void Begin(ncclComm_t comm, std::function<int()> enqueue) {
  comm->enqueue = std::move(enqueue);
  comm->polls_left = kPollsToSettle;
}

bool MayEnd() {
  if (fake.operations_left == 0) {
    return false;
  }
  if (fake.operations_left > 0) {
    --fake.operations_left;
  }
  return true;
}

size_t SizeOf(ncclDataType_t type) {
  return type == ncclBfloat16 || type == ncclFloat16 ? size_t{2} : size_t{4};
}

DType DTypeOf(ncclDataType_t type) {
  return type == ncclBfloat16 ? DType::kBF16 : type == ncclFloat16 ? DType::kF16 : DType::kF32;
}

// Adds the parts in the order of the ranks. Floats are added in fp32 and rounded once.
void Add(const Reduction& reduction, void* to) {
  for (size_t i = 0; i < reduction.kind.count; ++i) {
    const auto at = static_cast<int64_t>(i);
    if (reduction.kind.type == ncclUint32) {
      uint32_t sum = 0;
      for (const auto& [rank, part] : reduction.parts) {
        sum += reinterpret_cast<const uint32_t*>(part.data())[i];
      }
      static_cast<uint32_t*>(to)[i] = sum;
      continue;
    }
    const DType type = DTypeOf(reduction.kind.type);
    float sum = 0.0F;
    for (const auto& [rank, part] : reduction.parts) {
      sum += LoadElement(part.data(), type, at);
    }
    StoreElement(to, type, at, sum);
  }
}

Bytes Copy(const void* from, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(from);
  return {begin, begin + bytes};
}

// Returns the next reduction of the rank, which other ranks may have begun, or null if the rank
// differs from them.
std::shared_ptr<Reduction> NextReduction(ncclComm_t comm, const Kind& kind) {
  auto& reductions = comm->group->reductions;
  if (comm->next_reduction == reductions.size()) {
    reductions.push_back(std::make_shared<Reduction>(Reduction{.kind = kind}));
  }
  const std::shared_ptr<Reduction> reduction = reductions[comm->next_reduction++];
  if (reduction->kind != kind || kind.op != ncclSum) {
    Mistake("AllReduce: another count, type or operation than another rank's");
    return nullptr;
  }
  return reduction;
}

// Puts the rank's part of a reduction on its stream. An operation of a graph has no reduction yet,
// and finds one at each launch.
int EnqueueReduction(ncclComm_t comm,
                     const std::shared_ptr<Reduction>& reduction,
                     const Kind& kind,
                     const void* from,
                     void* to,
                     cudaStream_t stream) {
  struct Launch {
    std::shared_ptr<Reduction> reduction;
    int may_end = -1;
  };
  const auto launch = std::make_shared<Launch>(Launch{.reduction = reduction});
  const auto ended = comm->has_ended;
  const int size = comm->group->size;
  const int rank = comm->rank;
  const auto is_ready = [=] {
    const std::lock_guard<std::mutex> lock(mutex);
    if (*ended) {
      return true;
    }
    if (launch->reduction == nullptr) {
      launch->reduction = NextReduction(comm, kind);
    }
    if (launch->reduction == nullptr) {
      return false;
    }
    if (!launch->reduction->parts.contains(rank)) {
      launch->reduction->parts[rank] = Copy(from, kind.count * SizeOf(kind.type));
      launch->may_end = MayEnd() ? 1 : 0;
    }
    return launch->may_end == 1 && static_cast<int>(launch->reduction->parts.size()) == size;
  };
  return Enqueue(stream, to, is_ready, [=] {
    if (!*ended) {
      Add(*launch->reduction, to);
    }
    *launch = {};  // for the graph's next launch
  });
}

int EnqueueMessages(ncclComm_t comm, const std::vector<Message>& messages) {
  const auto ended = comm->has_ended;
  const auto group = comm->group;
  const int rank = comm->rank;
  const auto may_end = std::make_shared<int>(-1);
  const auto is_ready = [=] {
    const std::lock_guard<std::mutex> lock(mutex);
    if (*ended) {
      return true;
    }
    if (*may_end == -1) {
      for (const Message& message : messages) {
        if (message.is_send) {
          group->messages[{rank, message.peer}].push_back(
              Copy(message.from, message.count * sizeof(float)));
        }
      }
      *may_end = MayEnd() ? 1 : 0;
    }
    bool have_come = *may_end == 1;
    for (const Message& message : messages) {
      have_come &= message.is_send || !group->messages[{message.peer, rank}].empty();
    }
    return have_come;
  };
  const Message& first = messages.front();
  return Enqueue(first.stream, first.is_send ? first.from : first.to, is_ready, [=] {
    for (const Message& message : messages) {
      if (*ended || message.is_send) {
        continue;
      }
      std::deque<Bytes>& waiting = group->messages[{message.peer, rank}];
      if (waiting.front().size() != message.count * sizeof(float)) {
        Mistake("Recv: another count than the sender's");
      } else {
        std::memcpy(message.to, waiting.front().data(), waiting.front().size());
      }
      waiting.pop_front();
    }
    *may_end = -1;  // for the graph's next launch
  });
}

ncclResult_t AddMessage(const Message& message, ncclDataType_t type, const char* what) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (const ncclResult_t result = CheckFree(message.comm, what); result != ncclSuccess) {
    return result;
  }
  if (type != ncclFloat32 || message.peer < 0 || message.peer >= message.comm->group->size ||
      message.peer == message.comm->rank) {
    return Mistake(std::string(what) + ": no such rank, or no such type here");
  }
  if (is_in_group) {
    fused.push_back(message);
    return ncclSuccess;
  }
  ++fake.num_operations;
  Begin(message.comm, [message] { return EnqueueMessages(message.comm, {message}); });
  return ncclInProgress;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) FakeNccl* quire_fake_nccl() {
  fake.take_mistakes = &TakeMistakes;
  return &fake;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard<std::mutex> lock(mutex);
  *id = {};
  ++num_ids;
  std::memcpy(id, &num_ids, sizeof(num_ids));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const std::lock_guard<std::mutex> lock(mutex);
  uint64_t number = 0;
  std::memcpy(&number, &id, sizeof(number));
  if (number == 0 || number > num_ids || config->blocking != 0 || rank < 0 || rank >= size) {
    return Mistake("CommInitRankConfig: no such id or rank, or blocking");
  }
  std::shared_ptr<Group>& group = Groups()[number];
  if (group == nullptr) {
    group = std::make_shared<Group>(Group{.size = size});
  }
  if (group->size != size || !group->ranks.insert(rank).second) {
    return Mistake("CommInitRankConfig: another size, or a second rank of this number");
  }
  *comm = new ncclComm{.group = group, .rank = rank};
  live.insert(*comm);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!live.contains(comm)) {
    return Mistake("CommGetAsyncError: an unknown communicator, or one that has ended");
  }
  *state = ncclInProgress;
  const bool all_are_here = static_cast<int>(comm->group->ranks.size()) == comm->group->size;
  if (!comm->is_connected && (!fake.connects || !all_are_here)) {
    return ncclSuccess;
  }
  if (comm->rank == fake.failing_rank) {
    *state = ncclRemoteError;
    return ncclSuccess;
  }
  if (comm->polls_left > 0 && --comm->polls_left > 0) {
    return ncclSuccess;
  }
  *state = ncclSuccess;
  if (!std::exchange(comm->is_connected, true)) {
    ++fake.num_connected;
  }
  if (const auto enqueue = std::exchange(comm->enqueue, nullptr); enqueue && enqueue() != 0) {
    *state = ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  while (!fake.aborts) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::lock_guard<std::mutex> lock(mutex);
  if (live.erase(comm) == 0) {
    return Mistake("CommAbort: an unknown communicator, or one that has ended");
  }
  *comm->has_ended = true;
  ++fake.num_ended;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from,
                           void* to,
                           size_t count,
                           ncclDataType_t type,
                           ncclRedOp_t op,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (const ncclResult_t result = CheckFree(comm, "AllReduce"); result != ncclSuccess) {
    return result;
  }
  const Kind kind = {.count = count, .type = type, .op = op};
  const bool is_recorded = fake.is_recording(stream);
  const std::shared_ptr<Reduction> reduction = is_recorded ? nullptr : NextReduction(comm, kind);
  if (!is_recorded && reduction == nullptr) {
    return ncclInvalidUsage;
  }
  ++fake.num_operations;
  Begin(comm, [=] { return EnqueueReduction(comm, reduction, kind, from, to, stream); });
  return ncclInProgress;
}

ncclResult_t ncclSend(const void* from,
                      size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  const Message message = {
      .is_send = true, .from = from, .count = count, .peer = peer, .comm = comm, .stream = stream};
  return AddMessage(message, type, "Send");
}

ncclResult_t ncclRecv(
    void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  const Message message = {.to = to, .count = count, .peer = peer, .comm = comm, .stream = stream};
  return AddMessage(message, type, "Recv");
}

ncclResult_t ncclGroupStart() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::exchange(is_in_group, true)) {
    return Mistake("GroupStart: in a group");
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!std::exchange(is_in_group, false)) {
    return Mistake("GroupEnd: in no group");
  }
  const std::vector<Message> messages = std::exchange(fused, {});
  if (messages.empty()) {
    return ncclSuccess;
  }
  ++fake.num_operations;
  const ncclComm_t comm = messages.front().comm;
  Begin(comm, [=] { return EnqueueMessages(comm, messages); });
  return ncclInProgress;
}

}  // extern "C"
