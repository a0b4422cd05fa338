#include <stdlib.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/emulator/machine.h"

namespace quire::gpu::emulator {
namespace {

void DefaultFaultHandler(const Fault& fault) {
  fputs(fault.text, stderr);
  fflush(stderr);
  abort();
}

}  // namespace

std::atomic<FaultHandler> fault_handler{&DefaultFaultHandler};

void Emulator::Append(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start, a line above, is not seen.
  const int bytes = vsnprintf(text_ + text_bytes_, sizeof(text_) - text_bytes_, format, arguments);
  va_end(arguments);
  if (bytes > 0) {
    text_bytes_ += static_cast<size_t>(bytes);
    text_bytes_ = text_bytes_ < sizeof(text_) ? text_bytes_ : sizeof(text_) - 1;
  }
}

// Extends fault_.text to the whole report: the kernel, CTA, thread and line of the fault, and where
// other threads wait. Must run on the launcher's stack, else TSan would see no order between the
// faulting thread's writes to the text and the handler's reads.
void Emulator::DescribeFault() {
  constexpr int kMaxOthers = 8;
  text_bytes_ = 0;
  Append("%s in kernel %s, CTA (%u, %u, %u)",
         fault_.text,
         kernel_,
         fault_.cta.x,
         fault_.cta.y,
         fault_.cta.z);
  if (fault_.at.line != 0) {
    Append(", thread (%u, %u, %u) at %s:%d",
           fault_.thread.x,
           fault_.thread.y,
           fault_.thread.z,
           fault_.at.file,
           fault_.at.line);
  }
  Append("\n");
  int others = 0;
  for (uint32_t i = 0; i < num_threads_ && others < kMaxOthers; ++i) {
    const Fiber& other = fibers_[i];
    if (other.wait == Wait::kNothing || other.wait == Wait::kReturned) {
      continue;
    }
    ++others;
    Append("  thread (%u, %u, %u), warp %u, lane %u, waits in ",
           other.index.x,
           other.index.y,
           other.index.z,
           other.warp,
           other.lane);
    if (other.wait == Wait::kBarrier) {
      Append("__syncthreads");
    } else if (other.wait == Wait::kNamedBarrier) {
      Append("a named barrier");
    } else if (other.wait == Wait::kSharedBarrier) {
      Append("an mbarrier");
    } else if (other.wait == Wait::kEarlierOperation) {
      Append("the operation before the kernel");
    } else {
      Append("%s of mask %08x", other.operation->name, other.mask);
    }
    Append(" at %s:%d\n", other.at.file, other.at.line);
  }
  Append("  (%u of %u threads have returned)\n", num_threads_ - num_alive_, num_threads_);
  fault_.text = text_;
}

void Emulator::Fail(const Fiber& thread, FaultKind kind, const char* what, SourceLine at) {
  failed_ = true;
  fault_ = Fault{kind, kernel_, blockIdx, thread.index, at, what};
  Switch(*running_, launcher_, true);
  __builtin_unreachable();
}

FaultHandler SetFaultHandler(FaultHandler handler) {
  return fault_handler.exchange(handler != nullptr ? handler : &DefaultFaultHandler);
}

int ReportStreamFault(FaultKind kind, const char* operation, const char* what) {
  char text[512];
  snprintf(text, sizeof(text), "%s: %s\n", operation, what);
  fault_handler.load()(Fault{kind, operation, {}, {}, {}, text});
  return kErrorLaunchFailure;
}

void ReportFault(FaultKind kind, const char* what, SourceLine at) {
  if (active == nullptr) {
    fprintf(stderr, "%s at %s:%d\n", what, at.file, at.line);
    abort();
  }
  active->Fail(active->running(), kind, what, at);
}

}  // namespace quire::gpu::emulator
