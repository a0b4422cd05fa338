// A timed worker is a rank whose model sleeps for the time that it is told. The rest of a step's
// time is its cost beside the model.
//
// Thread safety: call RunTimedWorker in a process of its own, which has not used gRPC.
#ifndef QUIRE_TESTS_BENCH_TIMED_WORKER_H_
#define QUIRE_TESTS_BENCH_TIMED_WORKER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "common/model/model_config.h"
#include "common/model/rank_share.h"
#include "common/wire/address.h"

namespace quire {

// Tokens of 64 kinds, one layer, a head for each of 8 ranks.
ModelConfig TimedConfig(int32_t max_model_len);

struct TimedWorker {
  ModelConfig config;
  RankPlace place;
  int64_t forward_ns = 0;
  Address listen;
  std::string peers_path;  // of the socket where other ranks find it
};

// The real server and executor around such a model. Tells where it listens, and serves until the
// process is killed.
[[noreturn]] void RunTimedWorker(const TimedWorker& worker,
                                 const std::function<void(const Address&)>& on_listening);

}  // namespace quire

#endif  // QUIRE_TESTS_BENCH_TIMED_WORKER_H_
