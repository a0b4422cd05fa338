// A ServedModel without files: the letter tokenizer, or none, and a vocabulary of 32.
//
// Thread safety: a free function.
#ifndef QUIRE_TESTS_SCHEDULER_RPC_TINY_SERVED_MODEL_H_
#define QUIRE_TESTS_SCHEDULER_RPC_TINY_SERVED_MODEL_H_

#include "scheduler/rpc/served_model.h"
#include "tests/scheduler/loop/letter_tokenizer.h"

namespace quire {

inline constexpr int32_t kTinyVocabSize = 32;  // ids 30 and 31 are padding: the tokenizer has none
inline constexpr TokenId kTinyEos = 25;        // 'z'

inline ServedModel TinyServedModel(bool with_tokenizer = true) {
  ServedModel model;
  model.names = {"tiny", "also-tiny"};
  model.config.architecture = "LlamaForCausalLM";
  model.config.vocab_size = kTinyVocabSize;
  model.config.max_position_embeddings = 100;
  model.eos_token_ids = {kTinyEos};
  if (with_tokenizer) {
    model.tokenizer = MakeLetterTokenizer();
  }
  return model;
}

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_RPC_TINY_SERVED_MODEL_H_
