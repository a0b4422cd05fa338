// SchedulerProbe asks a scheduler every second whether it lives: GET /livez of its HTTP port, which
// says whether its loop turns and its gRPC port answers. Not the gRPC port itself: that may want a
// certificate that only clients have.
//
// Thread safety: one caller at a time. Nothing blocks, but that a host's name is looked up at the
//                construction.
#ifndef QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_
#define QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_

#include <string>

#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/wire/address.h"

#include <sys/socket.h>

namespace quire {

class SchedulerProbe {
 public:
  // Of the HTTP port. "0.0.0.0" and "::" are asked on loopback.
  explicit SchedulerProbe(const Address& address);

  // True if it said yes since the last call. To be called a few times a second.
  bool Poll(Instant now);

 private:
  void Dial(Instant now);
  // Sends what is not sent yet and reads what has come. True: the answer is complete, or none
  // comes.
  bool Exchange();

  sockaddr_storage where_ = {};
  socklen_t where_length_ = 0;  // 0: nobody has that name
  FileDescriptor socket_;       // of the question under way
  bool is_sent_ = false;
  std::string answer_;  // its first bytes
  Instant ask_at_ = 0;
  Instant deadline_ = 0;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_
