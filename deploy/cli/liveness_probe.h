// LivenessProbe asks a scheduler, worker or gateway every second whether it is live, by GET /livez
// on its HTTP port. The answer tells whether the program's loop runs, and for a scheduler whether
// its gRPC port answers. The probe does not ask the gRPC port itself, which may demand a
// certificate that only clients have.
//
// Thread safety: one caller at a time. Only the constructor may block, to look up a host name.
#ifndef QUIRE_DEPLOY_CLI_LIVENESS_PROBE_H_
#define QUIRE_DEPLOY_CLI_LIVENESS_PROBE_H_

#include <string>

#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/wire/address.h"

#include <sys/socket.h>

namespace quire {

class LivenessProbe {
 public:
  // `address`: the program's HTTP port. If the host is "0.0.0.0" or "::", the probe asks on
  // loopback.
  explicit LivenessProbe(const Address& address);

  // Returns true if, since the last call, the program has answered that it is live. Call a few
  // times a second.
  bool Poll(Instant now);

 private:
  void Dial(Instant now);
  // Sends the HTTP request if it has not been sent, and reads available bytes. Returns true if the
  // answer is complete, or if no answer will come.
  bool Exchange();

  sockaddr_storage where_ = {};
  socklen_t where_length_ = 0;  // 0: the host name is unknown
  FileDescriptor socket_;       // connection of the current question
  bool is_sent_ = false;
  std::string answer_;  // first bytes of the answer
  Instant ask_at_ = 0;
  Instant deadline_ = 0;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_LIVENESS_PROBE_H_
