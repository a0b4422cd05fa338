#include "deploy/gateway/template/parser.h"

#include <utility>

#include "common/base/status_macros.h"

namespace quire {
namespace {

constexpr int kMaxTreeDepth = 250;    // bounds recursion over the tree
constexpr int kMaxParserDepth = 120;  // bounds the parser's own recursion

}  // namespace

absl::StatusOr<NodePtr> ParseTemplate(std::string_view source) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return TemplateParser(std::move(tokens)).Parse();
}

TemplateParser::TemplateParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

absl::StatusOr<NodePtr> TemplateParser::Parse() {
  NodePtr root = New(NodeKind::kTemplate);
  for (NodePtr& statement : ParseUntil({})) {
    Attach(*root, root->body, std::move(statement));
  }
  QUIRE_RETURN_IF_ERROR(status_);
  return root;
}

void TemplateParser::Fail(std::string_view message) {
  if (ok()) {
    status_ = TemplateSyntaxError(Now().line, message);
    next_ = tokens_.size() - 1;
  }
}

bool TemplateParser::Enter() {
  if (++depth_ > kMaxParserDepth) {
    Fail("nested too deep");
  }
  return ok();
}

Token TemplateParser::Take() {
  Token token = Now();
  next_ = std::min(next_ + 1, tokens_.size() - 1);
  return token;
}

bool TemplateParser::TakeIfOperator(std::string_view symbol) {
  const bool is_there = Now().IsOperator(symbol);
  next_ += is_there ? 1 : 0;
  return is_there;
}

bool TemplateParser::TakeIfName(std::string_view name) {
  const bool is_there = Now().IsName(name);
  next_ += is_there ? 1 : 0;
  return is_there;
}

void TemplateParser::Expect(TokenKind kind, std::string_view text) {
  if (Now().kind != kind || Now().text != text) {
    Fail(text.empty() ? "the tag does not end here" : Cat("expected '", text, "'"));
    return;
  }
  Take();
}

std::string TemplateParser::ExpectName() {
  if (Now().kind != TokenKind::kName) {
    Fail("expected a name");
    return "";
  }
  return Take().text;
}

NodePtr TemplateParser::New(NodeKind kind, int line) const {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = line != 0 ? line : Now().line;
  return node;
}

void TemplateParser::Attach(Node& parent, Nodes& list, NodePtr child) {
  if (child != nullptr) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxTreeDepth) {
      Fail("nested too deep");
    }
  }
  list.push_back(std::move(child));
}

NodePtr TemplateParser::Operation(NodeKind kind, NodePtr first, NodePtr second) {
  NodePtr node = New(kind);
  Attach(*node, node->parts, std::move(first));
  if (second != nullptr) {
    Attach(*node, node->parts, std::move(second));
  }
  return node;
}

// Parses statements up to the end of the template, or up to a tag whose name is in `ends`. The next
// token is then the tag's name.
TemplateParser::Nodes TemplateParser::ParseUntil(std::initializer_list<std::string_view> ends) {
  Nodes statements;
  NodePtr output;  // text and expressions in a row
  while (ok() && Now().kind != TokenKind::kEnd) {
    if (Now().kind == TokenKind::kBlockBegin) {
      if (output != nullptr) {
        statements.push_back(std::exchange(output, nullptr));
      }
      Take();
      if (std::any_of(ends.begin(), ends.end(), [this](auto end) { return Now().IsName(end); })) {
        return statements;
      }
      if (NodePtr statement = ParseStatement(); statement != nullptr) {
        statements.push_back(std::move(statement));
      }
      Expect(TokenKind::kBlockEnd, "");
      continue;
    }
    if (output == nullptr) {
      output = New(NodeKind::kOutput);
    }
    if (Now().kind == TokenKind::kData) {
      NodePtr data = New(NodeKind::kData);
      data->text = Take().text;
      Attach(*output, output->parts, std::move(data));
    } else {
      Expect(TokenKind::kVariableBegin, "");
      Attach(*output, output->parts, ParseTuple({}));
      Expect(TokenKind::kVariableEnd, "");
    }
  }
  if (output != nullptr) {
    statements.push_back(std::exchange(output, nullptr));
  }
  if (ends.size() > 0) {
    Fail(Cat("unexpected end of the template: '", *(ends.end() - 1), "' is missing"));
  }
  return statements;
}

void TemplateParser::ParseBody(Node& node,
                               Nodes& list,
                               std::initializer_list<std::string_view> ends) {
  TakeIfOperator(":");
  Expect(TokenKind::kBlockEnd, "");
  for (NodePtr& statement : ParseUntil(ends)) {
    Attach(node, list, std::move(statement));
  }
}

// Parses the body and the end tag of a statement whose body is a separate function. break and
// continue cannot leave the function, so loops around it do not count.
void TemplateParser::ParseOwnBody(Node& node, std::string_view end) {
  const int loop_depth = std::exchange(loop_depth_, 0);
  ParseBody(node, node.body, {end});
  Take();
  loop_depth_ = loop_depth;
}

NodePtr TemplateParser::ParseStatement() {
  if (!Enter()) {
    return nullptr;
  }
  NodePtr node;
  const int line = Now().line;
  const std::string name = ExpectName();
  if (name == "if") {
    node = ParseIf();
  } else if (name == "for") {
    node = ParseFor();
  } else if (name == "set") {
    node = ParseSet();
  } else if (name == "macro") {
    node = ParseMacro();
  } else if (name == "call" || name == "generation") {
    node = name == "call" ? ParseCallBlock() : Operation(NodeKind::kCallBlock, nullptr);
    ParseOwnBody(*node, name == "call" ? "endcall" : "endgeneration");
  } else if (name == "filter") {
    node = ParseFilterBlock();
  } else if (name == "with") {
    node = ParseWith();
  } else if (name == "print") {
    node = ParsePrint();
  } else if (name == "break" || name == "continue") {
    node = New(name == "break" ? NodeKind::kBreak : NodeKind::kContinue);
    if (loop_depth_ == 0) {
      Fail(Cat("'", name, "' outside of a loop"));
    }
  } else {
    Fail(Cat("unknown tag '", name, "'"));
    return nullptr;
  }
  node->line = line;
  --depth_;
  return node;
}

NodePtr TemplateParser::ParseIf() {
  NodePtr first = New(NodeKind::kIf);
  Node* node = first.get();
  while (ok()) {
    Attach(*node, node->parts, ParseTuple({.with_condition = false}));
    ParseBody(*node, node->body, {"elif", "else", "endif"});
    const Token end = Take();
    if (node != first.get()) {
      first->depth = std::max(first->depth, node->depth + 1);
    }
    if (end.text == "elif") {
      first->branches.push_back(New(NodeKind::kIf));
      node = first->branches.back().get();
      continue;
    }
    if (end.text == "else") {
      ParseBody(*first, first->otherwise, {"endif"});
      Take();
    }
    break;
  }
  return first;
}

NodePtr TemplateParser::ParseFor() {
  NodePtr node = New(NodeKind::kFor);
  ++num_fors_;
  Attach(*node, node->parts, ParseTarget(true));
  Expect(TokenKind::kName, "in");
  Attach(*node, node->parts, ParseTuple({.with_condition = false, .end_name = "recursive"}));
  Attach(*node, node->parts, TakeIfName("if") ? ParseExpression() : nullptr);
  if (Now().IsName("recursive")) {
    Fail("recursive loops are not supported");
  }
  ++loop_depth_;
  ParseBody(*node, node->body, {"else", "endfor"});
  --loop_depth_;
  if (Take().text == "else") {
    ParseBody(*node, node->otherwise, {"endfor"});
    Take();
  }
  --num_fors_;
  return node;
}

NodePtr TemplateParser::ParseSet() {
  NodePtr node = New(NodeKind::kSet);
  Attach(*node, node->parts, ParseTarget(false));
  if (TakeIfOperator("=")) {
    Attach(*node, node->parts, ParseTuple({}));
    return node;
  }
  node->kind = NodeKind::kSetBlock;
  Attach(*node, node->parts, Now().IsOperator("|") ? ParseFilters(nullptr) : nullptr);
  ParseBody(*node, node->body, {"endset"});
  Take();
  return node;
}

NodePtr TemplateParser::ParseMacro() {
  NodePtr node = New(NodeKind::kMacro);
  node->text = ParseNameTarget(NodeKind::kTarget)->text;
  ParseSignature(*node);
  ParseOwnBody(*node, "endmacro");
  return node;
}

NodePtr TemplateParser::ParseCallBlock() {
  NodePtr node = New(NodeKind::kCallBlock);
  if (Now().IsOperator("(")) {
    ParseSignature(*node);
  }
  Attach(*node, node->parts, ParseExpression());
  if (ok() && node->parts[0]->kind != NodeKind::kCall) {
    Fail("expected a call");
  }
  return node;
}

NodePtr TemplateParser::ParseFilterBlock() {
  NodePtr node = New(NodeKind::kFilterBlock);
  Attach(*node, node->parts, ParseFilters(nullptr, true));
  ParseBody(*node, node->body, {"endfilter"});
  Take();
  return node;
}

NodePtr TemplateParser::ParseWith() {
  NodePtr node = New(NodeKind::kWith);
  while (ok() && Now().kind != TokenKind::kBlockEnd) {
    if (!node->parts.empty()) {
      Expect(TokenKind::kOperator, ",");
    }
    Attach(*node, node->parameters, ParseNameTarget(NodeKind::kParameter));
    Expect(TokenKind::kOperator, "=");
    Attach(*node, node->parts, ParseExpression());
  }
  ParseBody(*node, node->body, {"endwith"});
  Take();
  return node;
}

NodePtr TemplateParser::ParsePrint() {
  NodePtr node = New(NodeKind::kOutput);
  while (ok() && Now().kind != TokenKind::kBlockEnd) {
    if (!node->parts.empty()) {
      Expect(TokenKind::kOperator, ",");
    }
    Attach(*node, node->parts, ParseExpression());
  }
  return node;
}

void TemplateParser::ParseSignature(Node& node) {
  Expect(TokenKind::kOperator, "(");
  while (ok() && !Now().IsOperator(")")) {
    if (!node.parameters.empty()) {
      Expect(TokenKind::kOperator, ",");
    }
    NodePtr parameter = ParseNameTarget(NodeKind::kParameter);
    if (std::any_of(node.parameters.begin(), node.parameters.end(), [&](const NodePtr& other) {
          return other->text == parameter->text;
        })) {
      Fail("a parameter has the name of another");
    }
    Attach(node, node.parameters, std::move(parameter));
    if (TakeIfOperator("=")) {
      Attach(node, node.defaults, ParseExpression());
    } else if (!node.defaults.empty()) {
      Fail("a parameter without a default follows one with a default");
    }
  }
  Expect(TokenKind::kOperator, ")");
}

NodePtr TemplateParser::ParseNameTarget(NodeKind kind) {
  NodePtr node = New(kind);
  node->text = ExpectName();
  for (std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (node->text == constant) {
      Fail("cannot assign to a constant");
    }
  }
  return node;
}

NodePtr TemplateParser::ParseTarget(bool is_of_for) {
  NodePtr node = ParseTuple(
      {.is_target = true, .with_namespace = !is_of_for, .end_name = is_of_for ? "in" : ""});
  if (node != nullptr) {
    MakeTarget(*node);
  }
  return node;
}

// Makes the names in `node` the targets of an assignment.
void TemplateParser::MakeTarget(Node& node) {
  if (node.kind == NodeKind::kName) {
    node.kind = NodeKind::kTarget;
    if (num_fors_ > 0 && node.text == "loop") {
      Fail("cannot assign to the special variable loop");
    }
  } else if (node.kind == NodeKind::kTuple) {
    for (const NodePtr& part : node.parts) {
      if (part != nullptr) {
        MakeTarget(*part);
      }
    }
  } else if (node.kind != NodeKind::kNamespaceRef) {
    Fail("cannot assign to this");
  }
}

}  // namespace quire
