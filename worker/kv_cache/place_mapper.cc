#include "worker/kv_cache/place_mapper.h"

#include <utility>

namespace quire {

PlaceMapper::PlaceMapper(KernelBackend& backend, WindowMemory& memory)
    : backend_(backend), memory_(memory), thread_([this] { Loop(); }) {}

PlaceMapper::~PlaceMapper() {
  Wait();
  {
    const MutexLock lock(mutex_);
    is_over_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void PlaceMapper::Start(const std::vector<MapOrder>& orders) {
  orders_ = orders;
  {
    const MutexLock lock(mutex_);
    is_under_way_ = true;
  }
  changed_.NotifyAll();
}

bool PlaceMapper::Wait() {
  MutexLock lock(mutex_);
  while (is_under_way_) {
    changed_.Wait(mutex_);
  }
  return !std::exchange(has_failed_, false);
}

void PlaceMapper::Loop() {
  backend_.BindThread();
  MutexLock lock(mutex_);
  while (true) {
    while (!is_under_way_ && !is_over_) {
      changed_.Wait(mutex_);
    }
    if (is_over_) {
      return;
    }
    lock.Unlock();
    bool has_failed = false;
    for (const MapOrder& order : orders_) {
      has_failed = !memory_.Map(order.place, order.block, order.count).ok() || has_failed;
    }
    lock.Lock();
    has_failed_ = has_failed;
    is_under_way_ = false;
    changed_.NotifyAll();
  }
}

}  // namespace quire
