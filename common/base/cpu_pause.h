// CpuPause tells the CPU core that the calling thread spins in a loop. The hint saves power and
// lets the core's other hardware thread compute.
//
// Thread safety: any thread.
#ifndef QUIRE_COMMON_BASE_CPU_PAUSE_H_
#define QUIRE_COMMON_BASE_CPU_PAUSE_H_

#include <thread>

namespace quire {

inline void CpuPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_CPU_PAUSE_H_
