// GatewayChild keeps quire_gateway running for `quire serve`. A restarted gateway gets the ports of
// the first start. A gateway that does not answer for 10 s is killed and started again.
//
// Thread safety: one caller at a time. No call blocks.
#ifndef QUIRE_DEPLOY_CLI_GATEWAY_CHILD_H_
#define QUIRE_DEPLOY_CLI_GATEWAY_CHILD_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "deploy/cli/liveness_probe.h"
#include "deploy/cli/supervised_child.h"

namespace quire {

class GatewayChild {
 public:
  explicit GatewayChild(std::vector<std::string> argv);

  SupervisedChild& child() { return child_; }

  // Reads the lines of the running process, and its answers to the probe. The first call after the
  // process has ended returns the status of waitpid(2); other calls return nullopt. Call a few
  // times a second.
  std::optional<int> Tend(Instant now);

  // Address of OpenAI's API, HOST:PORT; empty until the first process listens.
  const std::string& api_address() const { return api_address_; }
  // True once a process has been ready to serve.
  bool was_ready() const { return was_ready_; }

 private:
  void OnLine(std::string_view line);

  SupervisedChild child_;
  std::string api_address_;
  std::optional<LivenessProbe> probe_;  // of the running process; nullopt until it listens
  bool was_ready_ = false;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_GATEWAY_CHILD_H_
