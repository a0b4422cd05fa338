// Tokenize cuts a template into tokens, like jinja2's lexer with trim_blocks and lstrip_blocks.
//
// Thread safety: free function, safe from any thread.
// Cost:          linear in the source.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_LEXER_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_LEXER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

enum class TokenKind : uint8_t {
  kData,           // text between tags
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,  // the text of the string, escapes decoded
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;
  int64_t integer = 0;
  double number = 0;

  bool IsOperator(std::string_view symbol) const {
    return kind == TokenKind::kOperator && text == symbol;
  }
  bool IsName(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// Returns the error of a template that cannot be parsed: kInvalidArgument, reason TEMPLATE_SYNTAX.
absl::Status TemplateSyntaxError(int line, std::string_view message);

// Returns the tokens; the last is kEnd. REQUIRES: source is UTF-8.
// Errors: TemplateSyntaxError.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_LEXER_H_
