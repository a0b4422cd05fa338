#include "scheduler/kv_events/kv_event_publisher.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/unix_socket.h"
#include "scheduler/kv_events/kv_event_encoder.h"

#include <sys/eventfd.h>
#include <sys/stat.h>

namespace quire {
namespace {

// Upper bound on an incoming frame. A replay request's longest frame has 8 bytes; frames of
// ZeroMQ's handshake and subscriptions are longer.
constexpr int64_t kMaxIncomingFrameBytes = 4096;
constexpr std::string_view kIpc = "ipc://";
constexpr size_t kNumRequestFrames = 3;  // client's identity, empty frame, first wanted number
constexpr uint64_t kEndOfReplay = std::numeric_limits<uint64_t>::max();

double WallClockSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

size_t NumTokens(const std::vector<CacheEvent>& events) {
  size_t num_tokens = events.size();
  for (const CacheEvent& event : events) {
    num_tokens += event.token_ids.size() + event.block_hashes.size();
  }
  return num_tokens;
}

zmq::message_t SequenceFrame(uint64_t sequence) {
  std::array<char, sizeof(sequence)> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(sequence >> (8 * (bytes.size() - 1 - i)));
  }
  return {bytes.data(), bytes.size()};
}

uint64_t SequenceIn(const zmq::message_t& frame) {
  uint64_t sequence = 0;
  for (size_t i = 0; i < frame.size(); ++i) {
    sequence = sequence << 8 | frame.data<unsigned char>()[i];
  }
  return sequence;
}

// Makes a new socket listen, and returns its endpoint. num_unsent: upper bound on the messages that
// wait for a connection that does not read.
std::string Bind(zmq::socket_t& socket, const std::string& endpoint, int num_unsent) {
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::sndhwm, num_unsent);
  socket.set(zmq::sockopt::maxmsgsize, kMaxIncomingFrameBytes);
  socket.set(zmq::sockopt::tcp_keepalive, 1);  // finds connections whose machine is gone
  socket.set(zmq::sockopt::ipv6, endpoint.find('[') != std::string::npos);
  const std::string path = endpoint.starts_with(kIpc) ? endpoint.substr(kIpc.size()) : "";
  if (!path.empty() && IsListenedOn(path)) {
    errno = EADDRINUSE;
    throw zmq::error_t();  // bind would take the path away from the process that listens there
  }
  socket.bind(endpoint);
  if (!path.empty()) {
    // Keeps out other users. They could read prompts at the socket. They could also end this
    // process: ZeroMQ 4.3.4 aborts if a Unix socket gets a connection when no more files can be
    // opened.
    ::chmod(path.c_str(), S_IRUSR | S_IWUSR);
  }
  return socket.get(zmq::sockopt::last_endpoint);
}

absl::Status BindError(const char* flag, const std::string& endpoint, const zmq::error_t& error) {
  return Error(absl::StatusCode::kUnavailable,
               "KV_EVENTS_BIND",
               absl::StrCat("--", flag, ": cannot listen on ", endpoint, ": ", error.what()));
}

// Sends a message. `before`: frames in front of the topic.
void SendFrames(zmq::socket_t& socket,
                std::vector<zmq::message_t> before,
                std::string_view topic,
                uint64_t sequence,
                zmq::message_t payload) {
  for (zmq::message_t& frame : before) {
    socket.send(frame, zmq::send_flags::sndmore);
  }
  socket.send(zmq::message_t(topic.data(), topic.size()), zmq::send_flags::sndmore);
  socket.send(SequenceFrame(sequence), zmq::send_flags::sndmore);
  socket.send(payload, zmq::send_flags::none);
}

}  // namespace

KvEventPublisher::KvEventPublisher(KvEventSettings settings, MetricsRegistry* registry)
    : settings_(std::move(settings)),
      published_(&registry->Counter(metric::kKvEventBatchesTotal, {{"result", "published"}})),
      dropped_(&registry->Counter(metric::kKvEventBatchesTotal, {{"result", "dropped"}})),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  QUIRE_CHECK(wake_.is_open() && settings_.buffer_steps > 0);
}

KvEventPublisher::~KvEventPublisher() {
  if (!thread_.joinable()) {
    return;  // never opened
  }
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  Wake();
  thread_.join();
}

absl::Status KvEventPublisher::Open() {
  QUIRE_RETURN_IF_ERROR(Listen());
  thread_ = std::thread([this] { Run(); });
  LogInfo("KV events are published",
          {{"endpoint", bound_endpoint_}, {"replay_endpoint", bound_replay_endpoint_}});
  return absl::OkStatus();
}

absl::Status KvEventPublisher::Listen() {
  try {
    publisher_.emplace(context_, zmq::socket_type::pub);
    bound_endpoint_ = Bind(*publisher_, settings_.endpoint, settings_.buffer_steps);
  } catch (const zmq::error_t& error) {
    return BindError("kv-events-endpoint", settings_.endpoint, error);
  }
  if (settings_.replay_endpoint.empty()) {
    return absl::OkStatus();
  }
  try {
    replay_.emplace(context_, zmq::socket_type::router);
    // The longest answer has all kept batches and an end message. The limit is twice as high: up to
    // half of it, ZeroMQ may count messages as unsent after a client has read them.
    bound_replay_endpoint_ =
        Bind(*replay_, settings_.replay_endpoint, 2 * (settings_.buffer_steps + 1));
  } catch (const zmq::error_t& error) {
    return BindError("kv-events-replay-endpoint", settings_.replay_endpoint, error);
  }
  return absl::OkStatus();
}

void KvEventPublisher::Publish(std::vector<CacheEvent> events) {
  Batch batch = {
      .sequence = next_sequence_++, .timestamp_s = WallClockSeconds(), .events = std::move(events)};
  const size_t num_tokens = NumTokens(batch.events);
  bool is_dropped = false;
  {
    const MutexLock lock(mutex_);
    is_dropped = num_waiting_tokens_ + num_tokens > kMaxWaitingTokens;
    if (!is_dropped) {
      num_waiting_tokens_ += num_tokens;
      waiting_.push_back(std::move(batch));
    }
  }
  if (!is_dropped) {
    published_->Increment();
    Wake();
    return;
  }
  dropped_->Increment();
  if (!std::exchange(has_warned_, true)) {
    LogWarning("KV events are dropped, because they come faster than they can be sent",
               {{"sequence", absl::StrCat(next_sequence_ - 1)}});
  }
}

void KvEventPublisher::Wake() {
  const uint64_t one = 1;
  // The write fails only if the eventfd's counter is full. The thread wakes then, too.
  [[maybe_unused]] const ssize_t size = ::write(wake_.fd(), &one, sizeof(one));
}

void KvEventPublisher::Run() {
  for (;;) {
    try {
      if (!Turn()) {
        return;
      }
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) {
        LogError("publishing KV events ended", {{"cause", error.what()}});
        return;
      }
    }
  }
}

bool KvEventPublisher::Turn() {
  std::vector<zmq::pollitem_t> items = {{nullptr, wake_.fd(), ZMQ_POLLIN, 0}};
  if (replay_.has_value()) {
    items.push_back({replay_->handle(), 0, ZMQ_POLLIN, 0});
  }
  zmq::poll(items, std::chrono::milliseconds(-1));
  if (items.back().revents != 0 && replay_.has_value()) {
    AnswerReplay();
  }
  return items.front().revents == 0 || SendWaiting();
}

bool KvEventPublisher::SendWaiting() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t size = ::read(wake_.fd(), &count, sizeof(count));
  std::deque<Batch> batches;
  bool is_closing = false;
  {
    const MutexLock lock(mutex_);
    batches.swap(waiting_);
    num_waiting_tokens_ = 0;
    is_closing = closing_;
  }
  for (const Batch& batch : batches) {
    Send(batch);
  }
  return !is_closing;
}

void KvEventPublisher::Send(const Batch& batch) {
  const std::string bytes = EncodeKvEvents(batch.timestamp_s, batch.events);
  zmq::message_t payload(bytes.data(), bytes.size());
  zmq::message_t kept;
  kept.copy(payload);  // shares the bytes
  SendFrames(*publisher_, {}, settings_.topic, batch.sequence, std::move(payload));
  if (!replay_.has_value()) {
    return;
  }
  num_buffered_bytes_ += kept.size();
  buffer_.push_back({.sequence = batch.sequence, .payload = std::move(kept)});
  while (buffer_.size() > static_cast<size_t>(settings_.buffer_steps) ||
         num_buffered_bytes_ > kMaxBufferedBytes) {
    num_buffered_bytes_ -= buffer_.front().payload.size();
    buffer_.pop_front();
  }
}

void KvEventPublisher::AnswerReplay() {
  std::vector<zmq::message_t> frames;
  bool has_more = true;
  size_t num_frames = 0;
  for (; has_more; ++num_frames) {
    zmq::message_t frame;
    if (!replay_->recv(frame, zmq::recv_flags::dontwait).has_value()) {
      return;
    }
    has_more = frame.more();
    if (frames.size() < kNumRequestFrames) {
      frames.push_back(std::move(frame));
    }
  }
  const auto answer = [this, &frames](
                          std::string_view topic, uint64_t sequence, zmq::message_t payload) {
    std::vector<zmq::message_t> before(2);  // the client's identity, and an empty frame
    before.front().copy(frames.front());
    SendFrames(*replay_, std::move(before), topic, sequence, std::move(payload));
  };
  const bool is_request =
      num_frames == kNumRequestFrames && frames[1].empty() && frames[2].size() == sizeof(uint64_t);
  const uint64_t first = is_request ? SequenceIn(frames[2]) : kEndOfReplay;
  for (SentBatch& batch : buffer_) {
    if (batch.sequence >= first) {
      zmq::message_t payload;
      payload.copy(batch.payload);
      answer(settings_.topic, batch.sequence, std::move(payload));
    }
  }
  answer("", kEndOfReplay, {});
}

}  // namespace quire
