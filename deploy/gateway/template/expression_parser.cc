#include <utility>

#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/operators.h"
#include "deploy/gateway/template/parser.h"

namespace quire {

NodePtr TemplateParser::ParseTuple(const TupleStyle& style) {
  NodePtr tuple = New(NodeKind::kTuple);
  bool is_tuple = false;
  while (ok()) {
    if (!tuple->parts.empty()) {
      Expect(TokenKind::kOperator, ",");
    }
    const Token& now = Now();
    if (now.kind == TokenKind::kVariableEnd || now.kind == TokenKind::kBlockEnd ||
        now.IsOperator(")") || (!style.end_name.empty() && now.IsName(style.end_name))) {
      break;
    }
    Attach(*tuple,
           tuple->parts,
           style.is_target ? ParsePrimary(style.with_namespace)
                           : ParseExpression(style.with_condition));
    if (!Now().IsOperator(",")) {
      break;
    }
    is_tuple = true;
  }
  if (!is_tuple && !tuple->parts.empty()) {
    return std::move(tuple->parts[0]);
  }
  if (!is_tuple && !style.is_in_parentheses) {
    Fail("expected an expression");
  }
  return tuple;
}

NodePtr TemplateParser::ParseExpression(bool with_condition) {
  if (!Enter()) {
    return New(NodeKind::kNone);
  }
  NodePtr node = ParseOr();
  while (with_condition && TakeIfName("if")) {
    node = Operation(NodeKind::kCondition, std::move(node), ParseOr());
    Attach(*node, node->parts, TakeIfName("else") ? ParseExpression() : nullptr);
  }
  --depth_;
  return node;
}

NodePtr TemplateParser::ParseOr() {
  NodePtr node = ParseAnd();
  while (TakeIfName("or")) {
    node = Operation(NodeKind::kOr, std::move(node), ParseAnd());
  }
  return node;
}

NodePtr TemplateParser::ParseAnd() {
  NodePtr node = ParseNot();
  while (TakeIfName("and")) {
    node = Operation(NodeKind::kAnd, std::move(node), ParseNot());
  }
  return node;
}

NodePtr TemplateParser::ParseNot() {
  if (!TakeIfName("not")) {
    return ParseComparison();
  }
  NodePtr node = New(NodeKind::kNone);
  if (Enter()) {
    node = Operation(NodeKind::kNot, ParseNot());
  }
  --depth_;
  return node;
}

NodePtr TemplateParser::ParseComparison() {
  NodePtr node = ParseSum();
  NodePtr comparison;
  while (ok()) {
    constexpr std::string_view kSymbols[] = {"==", "!=", "<", "<=", ">", ">="};
    const auto* const symbol = std::find_if(std::begin(kSymbols),
                                            std::end(kSymbols),
                                            [this](auto text) { return Now().IsOperator(text); });
    auto op = static_cast<CompareOp>(symbol - std::begin(kSymbols));
    if (symbol != std::end(kSymbols)) {
      Take();
    } else if (TakeIfName("in")) {
      op = CompareOp::kIn;
    } else if (Now().IsName("not") && After().IsName("in")) {
      Take();
      Take();
      op = CompareOp::kNotIn;
    } else {
      break;
    }
    if (comparison == nullptr) {
      comparison = Operation(NodeKind::kCompare, std::move(node));
    }
    comparison->compare.push_back(op);
    Attach(*comparison, comparison->parts, ParseSum());
  }
  return comparison != nullptr ? std::move(comparison) : std::move(node);
}

NodePtr TemplateParser::ParseSum() {
  NodePtr node = ParseConcat();
  while (Now().IsOperator("+") || Now().IsOperator("-")) {
    const BinaryOp op = Take().text == "+" ? BinaryOp::kAdd : BinaryOp::kSub;
    node = Operation(NodeKind::kBinary, std::move(node), ParseConcat());
    node->integer = static_cast<int64_t>(op);
  }
  return node;
}

NodePtr TemplateParser::ParseConcat() {
  NodePtr node = ParseProduct();
  if (!Now().IsOperator("~")) {
    return node;
  }
  node = Operation(NodeKind::kConcat, std::move(node));
  while (TakeIfOperator("~")) {
    Attach(*node, node->parts, ParseProduct());
  }
  return node;
}

NodePtr TemplateParser::ParseProduct() {
  NodePtr node = ParsePower();
  while (Now().IsOperator("*") || Now().IsOperator("/") || Now().IsOperator("//") ||
         Now().IsOperator("%")) {
    const Token token = Take();
    const std::string_view symbol = token.text;
    const BinaryOp op = symbol == "*"    ? BinaryOp::kMul
                        : symbol == "/"  ? BinaryOp::kDiv
                        : symbol == "//" ? BinaryOp::kFloorDiv
                                         : BinaryOp::kMod;
    node = Operation(NodeKind::kBinary, std::move(node), ParsePower());
    node->integer = static_cast<int64_t>(op);
  }
  return node;
}

NodePtr TemplateParser::ParsePower() {
  NodePtr node = ParseUnary();
  while (TakeIfOperator("**")) {
    node = Operation(NodeKind::kBinary, std::move(node), ParseUnary());
    node->integer = static_cast<int64_t>(BinaryOp::kPow);
  }
  return node;
}

NodePtr TemplateParser::ParseUnary(bool with_filter) {
  if (!Enter()) {
    return New(NodeKind::kNone);
  }
  NodePtr node;
  if (TakeIfOperator("-")) {
    node = Operation(NodeKind::kNegate, ParseUnary(false));
  } else if (TakeIfOperator("+")) {
    node = Operation(NodeKind::kPlus, ParseUnary(false));
  } else {
    node = ParsePrimary();
  }
  node = ParsePostfix(std::move(node));
  --depth_;
  return with_filter ? ParseFilterExpression(std::move(node)) : std::move(node);
}

NodePtr TemplateParser::ParseNamed(bool with_namespace) {
  NodePtr node = New(NodeKind::kName);
  node->text = Take().text;
  const std::string& name = node->text;
  if (name == "true" || name == "false" || name == "True" || name == "False") {
    node->kind = NodeKind::kBool;
    node->integer = name == "true" || name == "True" ? 1 : 0;
  } else if (name == "none" || name == "None") {
    node->kind = NodeKind::kNone;
  } else if (with_namespace && TakeIfOperator(".")) {
    NodePtr reference = Operation(NodeKind::kNamespaceRef, std::move(node));
    reference->text = ExpectName();
    return reference;
  }
  return node;
}

NodePtr TemplateParser::ParsePrimary(bool with_namespace) {
  NodePtr node = New(NodeKind::kNone);
  switch (Now().kind) {
    case TokenKind::kName:
      return ParseNamed(with_namespace);
    case TokenKind::kString:
      node->kind = NodeKind::kString;
      while (Now().kind == TokenKind::kString) {
        node->text += Take().text;
      }
      return node;
    case TokenKind::kInteger:
      node->kind = NodeKind::kInt;
      node->integer = Take().integer;
      return node;
    case TokenKind::kFloat:
      node->kind = NodeKind::kFloat;
      node->number = Take().number;
      return node;
    default:
      break;
  }
  if (TakeIfOperator("(")) {
    node = ParseTuple({.is_in_parentheses = true});
    Expect(TokenKind::kOperator, ")");
  } else if (Now().IsOperator("[") || Now().IsOperator("{")) {
    node = ParseListOrDict(Take().text == "{");
  } else {
    Fail("expected an expression");
  }
  return node;
}

NodePtr TemplateParser::ParseListOrDict(bool is_dict) {
  NodePtr node = New(is_dict ? NodeKind::kDict : NodeKind::kList);
  const std::string_view end = is_dict ? "}" : "]";
  while (ok() && !Now().IsOperator(end)) {
    if (!node->parts.empty()) {
      Expect(TokenKind::kOperator, ",");
      if (Now().IsOperator(end)) {
        break;
      }
    }
    Attach(*node, node->parts, ParseExpression());
    if (is_dict) {
      Expect(TokenKind::kOperator, ":");
      Attach(*node, node->parts, ParseExpression());
    }
  }
  Expect(TokenKind::kOperator, end);
  return node;
}

NodePtr TemplateParser::ParsePostfix(NodePtr node) {
  while (ok()) {
    if (Now().IsOperator(".") || Now().IsOperator("[")) {
      node = ParseSubscript(std::move(node));
    } else if (Now().IsOperator("(")) {
      node = ParseCall(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

NodePtr TemplateParser::ParseFilterExpression(NodePtr node) {
  while (ok()) {
    if (Now().IsOperator("|")) {
      node = ParseFilters(std::move(node));
    } else if (TakeIfName("is")) {
      node = ParseTest(std::move(node));
    } else if (Now().IsOperator("(")) {
      node = ParseCall(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

NodePtr TemplateParser::ParseSubscript(NodePtr node) {
  if (!TakeIfOperator(".")) {
    return ParseIndex(std::move(node));
  }
  if (Now().kind == TokenKind::kInteger) {
    NodePtr index = New(NodeKind::kInt);
    index->integer = Take().integer;
    return Operation(NodeKind::kItem, std::move(node), std::move(index));
  }
  node = Operation(NodeKind::kAttribute, std::move(node));
  node->text = ExpectName();
  return node;
}

NodePtr TemplateParser::ParseIndex(NodePtr node) {
  Expect(TokenKind::kOperator, "[");
  if (Now().IsOperator("]")) {
    Fail("an empty subscript");
  }
  NodePtr first = Now().IsOperator(":") ? nullptr : ParseExpression();
  if (Now().IsOperator(":")) {
    node = Operation(NodeKind::kSlice, std::move(node));
    Attach(*node, node->parts, std::move(first));
    for (int i = 0; i < 2; ++i) {
      const bool is_there = TakeIfOperator(":") && !Now().IsOperator(":") && !Now().IsOperator("]");
      Attach(*node, node->parts, is_there ? ParseExpression() : nullptr);
    }
  } else {
    if (Now().IsOperator(",")) {
      Fail("a subscript with several parts is not supported");
    }
    node = Operation(NodeKind::kItem, std::move(node), std::move(first));
  }
  Expect(TokenKind::kOperator, "]");
  return node;
}

std::string TemplateParser::ParseDottedName() {
  std::string name = ExpectName();
  while (TakeIfOperator(".")) {
    name += '.';
    name += ExpectName();
  }
  return name;
}

NodePtr TemplateParser::ParseFilters(NodePtr node, bool is_started) {
  while (ok() && (is_started || TakeIfOperator("|"))) {
    NodePtr filter = New(NodeKind::kFilter);
    Attach(*filter, filter->parts, std::move(node));
    filter->text = ParseDottedName();
    if (Now().IsOperator("(")) {
      ParseArguments(*filter);
    }
    node = std::move(filter);
    is_started = false;
  }
  return node;
}

NodePtr TemplateParser::ParseTest(NodePtr node) {
  const bool is_negated = TakeIfName("not");
  NodePtr test = Operation(NodeKind::kTest, std::move(node));
  test->text = ParseDottedName();
  const Token& now = Now();
  const bool is_literal = now.kind == TokenKind::kString || now.kind == TokenKind::kInteger ||
                          now.kind == TokenKind::kFloat || now.IsOperator("[") ||
                          now.IsOperator("{");
  if (now.IsOperator("(")) {
    ParseArguments(*test);
  } else if (is_literal || (now.kind == TokenKind::kName && !now.IsName("else") &&
                            !now.IsName("or") && !now.IsName("and"))) {
    if (now.IsName("is")) {
      Fail("tests cannot be chained with 'is'");
    }
    Attach(*test, test->arguments, ParsePostfix(ParsePrimary()));
  }
  return is_negated ? Operation(NodeKind::kNot, std::move(test)) : std::move(test);
}

NodePtr TemplateParser::ParseCall(NodePtr node) {
  NodePtr call = Operation(NodeKind::kCall, std::move(node));
  ParseArguments(*call);
  return call;
}

void TemplateParser::ParseArguments(Node& node) {
  Expect(TokenKind::kOperator, "(");
  for (bool is_first = true; ok() && !Now().IsOperator(")"); is_first = false) {
    if (!is_first) {
      Expect(TokenKind::kOperator, ",");
      if (Now().IsOperator(")")) {
        break;
      }
    }
    ParseArgument(node);
  }
  Expect(TokenKind::kOperator, ")");
}

void TemplateParser::ParseArgument(Node& node) {
  Nodes single;
  bool is_valid = node.more_named == nullptr;
  if (TakeIfOperator("*")) {
    is_valid = is_valid && node.more_arguments == nullptr;
    Attach(node, single, ParseExpression());
    node.more_arguments = std::move(single[0]);
  } else if (TakeIfOperator("**")) {
    Attach(node, single, ParseExpression());
    node.more_named = std::move(single[0]);
  } else if (Now().kind == TokenKind::kName && After().IsOperator("=")) {
    std::string name = Take().text;
    Take();
    is_valid = is_valid && std::none_of(node.named.begin(),
                                        node.named.end(),
                                        [&](const auto& other) { return other.first == name; });
    Attach(node, single, ParseExpression());
    node.named.emplace_back(std::move(name), std::move(single[0]));
  } else {
    is_valid = is_valid && node.more_arguments == nullptr && node.named.empty();
    Attach(node, node.arguments, ParseExpression());
  }
  if (!is_valid) {
    Fail("invalid syntax for a function call");
  }
}

}  // namespace quire
