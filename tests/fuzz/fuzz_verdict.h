// Whether a target accepted its bytes. The names of seeds say what it should be: `NAME_at_bound` is
// accepted, `NAME_past_bound` refused. replay_main.cc compares.
//
// Thread safety: for one thread.
#ifndef QUIRE_TESTS_FUZZ_FUZZ_VERDICT_H_
#define QUIRE_TESTS_FUZZ_FUZZ_VERDICT_H_

namespace quire {

// Of the last execution; whoever executes sets it to false before. libFuzzer takes no answer.
inline bool is_accepted = false;

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_FUZZ_VERDICT_H_
