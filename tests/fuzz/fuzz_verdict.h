// Whether a target accepted its bytes. A seed's name says the expected verdict: `NAME_at_bound` is
// accepted, `NAME_past_bound` is refused. replay_main.cc compares.
//
// Thread safety: for one thread.
#ifndef QUIRE_TESTS_FUZZ_FUZZ_VERDICT_H_
#define QUIRE_TESTS_FUZZ_FUZZ_VERDICT_H_

namespace quire {

// The verdict of the last execution. The runner sets it to false before each one. libFuzzer ignores
// it.
inline bool is_accepted = false;

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_FUZZ_VERDICT_H_
