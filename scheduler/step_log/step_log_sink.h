// StepLogSink takes the bytes of a step log.
//
// Thread safety: called by the thread that owns the core.
#ifndef QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_SINK_H_
#define QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_SINK_H_

#include <string_view>

namespace quire {

class StepLogSink {
 public:
  virtual ~StepLogSink() = default;
  // Appends the head of the log, or one record. Must not block.
  virtual void Write(std::string_view bytes) = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_SINK_H_
