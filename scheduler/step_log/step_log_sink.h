// StepLogSink is where a step log goes.
//
// Thread safety: called by the thread that owns the core.
#ifndef QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_SINK_H_
#define QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_SINK_H_

#include <string_view>

namespace quire {

class StepLogSink {
 public:
  virtual ~StepLogSink() = default;
  // The next bytes of the log: its head, or one record. Must not block.
  virtual void Write(std::string_view bytes) = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_SINK_H_
