// ParseTemplate reads the statements and expressions of jinja2, with the tags break, continue and
// generation. Templates that inherit, include or import others are refused.
//
// Thread safety: free function, safe from any thread.
// Cost:          linear in the source; the tree is bounded in depth.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_PARSER_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_PARSER_H_

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "deploy/gateway/template/ast.h"
#include "deploy/gateway/template/lexer.h"

namespace quire {

// Returns a kTemplate node. REQUIRES: source is UTF-8. Errors: TemplateSyntaxError.
absl::StatusOr<NodePtr> ParseTemplate(std::string_view source);

// The parser's state: the tokens, and the first error. After an error every token is kEnd, so the
// functions return soon. Their results are dropped.
class TemplateParser {
 public:
  explicit TemplateParser(std::vector<Token> tokens);

  absl::StatusOr<NodePtr> Parse();

 private:
  using Nodes = std::vector<NodePtr>;

  // Tokens.
  const Token& Now() const { return tokens_[next_]; }
  const Token& After() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  Token Take();
  bool TakeIfOperator(std::string_view symbol);
  bool TakeIfName(std::string_view name);
  void Expect(TokenKind kind, std::string_view text);
  std::string ExpectName();
  void Fail(std::string_view message);
  bool ok() const { return status_.ok(); }

  NodePtr New(NodeKind kind, int line = 0) const;
  // Adds `child` to a list of `parent`. Fails if the tree becomes too deep.
  void Attach(Node& parent, Nodes& list, NodePtr child);
  // Makes a node with one or two operands.
  NodePtr Operation(NodeKind kind, NodePtr first, NodePtr second = nullptr);
  // Counts a level of recursion. Returns false if the recursion is too deep. The caller decrements
  // depth_ when it leaves the level.
  bool Enter();

  // Statements (parser.cc).
  Nodes ParseUntil(std::initializer_list<std::string_view> ends);
  void ParseBody(Node& node, Nodes& list, std::initializer_list<std::string_view> ends);
  void ParseOwnBody(Node& node, std::string_view end);
  NodePtr ParseStatement();
  NodePtr ParseIf();
  NodePtr ParseFor();
  NodePtr ParseSet();
  NodePtr ParseMacro();
  NodePtr ParseCallBlock();
  NodePtr ParseFilterBlock();
  NodePtr ParseWith();
  NodePtr ParsePrint();
  void ParseSignature(Node& node);
  NodePtr ParseTarget(bool is_of_for);
  NodePtr ParseNameTarget(NodeKind kind);
  void MakeTarget(Node& node);

  // Expressions (expression_parser.cc).
  NodePtr ParseExpression(bool with_condition = true);
  struct TupleStyle {
    bool is_target = false;  // true: only names and literals
    bool with_namespace = false;
    bool with_condition = true;
    bool is_in_parentheses = false;
    std::string_view end_name = "";  // a name that ends the tuple
  };
  NodePtr ParseTuple(const TupleStyle& style);
  NodePtr ParseOr();
  NodePtr ParseAnd();
  NodePtr ParseNot();
  NodePtr ParseComparison();
  NodePtr ParseSum();
  NodePtr ParseConcat();
  NodePtr ParseProduct();
  NodePtr ParsePower();
  NodePtr ParseUnary(bool with_filter = true);
  NodePtr ParsePrimary(bool with_namespace = false);
  NodePtr ParseNamed(bool with_namespace);
  NodePtr ParseListOrDict(bool is_dict);
  NodePtr ParsePostfix(NodePtr node);
  NodePtr ParseSubscript(NodePtr node);
  NodePtr ParseIndex(NodePtr node);
  NodePtr ParseFilterExpression(NodePtr node);
  NodePtr ParseFilters(NodePtr node, bool is_started = false);
  NodePtr ParseTest(NodePtr node);
  NodePtr ParseCall(NodePtr node);
  void ParseArguments(Node& node);
  void ParseArgument(Node& node);
  std::string ParseDottedName();

  std::vector<Token> tokens_;
  size_t next_ = 0;
  absl::Status status_;
  int depth_ = 0;       // of the parser's recursion
  int loop_depth_ = 0;  // enclosing for statements within the same macro
  int num_fors_ = 0;    // enclosing for statements, also outside the macro
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_PARSER_H_
