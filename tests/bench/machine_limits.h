// Measures the machine's peak rates: fp32 multiply-adds and reads from memory. Kernels are judged
// by the fraction of the peak that they reach.
//
// Thread safety: one caller at a time. The Cached functions measure once a process and thread
// count.
#ifndef QUIRE_TESTS_BENCH_MACHINE_LIMITS_H_
#define QUIRE_TESTS_BENCH_MACHINE_LIMITS_H_

namespace quire {

// Floating-point operations a second of independent fused multiply-adds in registers, all threads
// together, with the widest vectors there are. 0 where the machine has no such instruction.
double MeasureFmaPeak(int num_threads);

// Bytes a second of reading memory that is in no cache.
double MeasureMemoryRead(int num_threads);

double CachedFmaPeak(int num_threads);
double CachedMemoryRead(int num_threads);

}  // namespace quire

#endif  // QUIRE_TESTS_BENCH_MACHINE_LIMITS_H_
