// Writes seeds into tests/fuzz/corpus; the parts of quire_message_corpora.
//
// Thread safety: for one thread; the working directory is the source tree.
#ifndef QUIRE_TESTS_FUZZ_MESSAGE_CORPORA_H_
#define QUIRE_TESTS_FUZZ_MESSAGE_CORPORA_H_

#include <string>
#include <string_view>

namespace quire {

// Replaces the seed, if there is one.
void WriteSeed(const std::string& target, const std::string& name, std::string_view bytes);

// A number at its bound is allowed, one past it is not: a rule that is off by one lets the second
// one through, and fuzz_verdict.h finds it in the seeds.
std::string NameOfSeed(const char* bound, int past);

void WriteStepSeeds();     // plans and results
void WriteRequestSeeds();  // what clients ask

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_MESSAGE_CORPORA_H_
