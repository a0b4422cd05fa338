// Encodes or decodes lines for make_tokenizer_golden.py and crosscheck.py, which compare with
// Hugging Face `tokenizers`.
//
//   text_tool encode tokenizer.json   reads JSON strings, one a line; writes ids with special
//   tokens
//                                     added, separated by spaces, one line each
//   text_tool plain tokenizer.json    the same without special tokens, special text read as plain
//   text text_tool decode tokenizer.json   reads ids separated by spaces; writes JSON strings
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "common/json/json.h"
#include "scheduler/text/tokenizer.h"

namespace quire {
namespace {

int Run(const std::string& mode, const Tokenizer& tokenizer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (mode == "decode") {
      std::istringstream in(line);
      std::vector<TokenId> ids;
      for (TokenId id = 0; in >> id;) {
        ids.push_back(id);
      }
      std::cout << Json(tokenizer.Decode(ids, /*skip_special_tokens=*/true)).dump() << '\n';
      continue;
    }
    absl::StatusOr<Json> text = ParseJson(line);
    if (!text.ok() || !text->is_string()) {
      std::cerr << "not a JSON string\n";
      return 1;
    }
    bool plain = mode == "plain";
    auto ids = tokenizer.Encode(text->get_ref<const std::string&>(), !plain, !plain);
    if (!ids.ok()) {
      std::cerr << ids.status() << '\n';
      return 1;
    }
    for (TokenId id : *ids) {
      std::cout << id << ' ';
    }
    std::cout << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: text_tool encode|plain|decode tokenizer.json\n";
    return 2;
  }
  auto tokenizer = quire::Tokenizer::Load(argv[2]);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << '\n';
    return 1;
  }
  return quire::Run(argv[1], **tokenizer);
}
