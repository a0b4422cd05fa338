#include "deploy/gateway/template/chat_template.h"

#include <limits>
#include <utility>

#include "common/base/status_macros.h"
#include "deploy/gateway/template/content_loop.h"
#include "deploy/gateway/template/interpreter.h"
#include "deploy/gateway/template/lexer.h"
#include "deploy/gateway/template/parser.h"
#include "deploy/gateway/template/scopes.h"
#include "deploy/gateway/template/unicode.h"
#include "deploy/gateway/template/value.h"

namespace quire {
namespace {

constexpr size_t kMaxSourceBytes = 1 << 20;  // published templates have up to 50 KB

// Makes a string that views the JSON's text instead of copying it.
Value TextOf(Heap& heap, const std::string& text, bool is_client) {
  heap.budget().SpendOnText(text.size());
  return IsUtf8(text) ? heap.Borrowed(text, is_client) : heap.Fail("a string is not UTF-8");
}

// Converts JSON to a value. `is_client`: the JSON came from the client.
Value ValueOf(Heap& heap, const nlohmann::ordered_json& json, bool is_client) {
  const DepthGuard guard(heap.budget());
  if (!guard.ok() || !heap.budget().Spend()) {
    return Value();
  }
  using Type = nlohmann::json::value_t;
  switch (json.type()) {
    case Type::null:
      return Value::None();
    case Type::boolean:
      return Value::Bool(json.get<bool>());
    case Type::number_float:
      return Value::Float(json.get<double>());
    case Type::number_unsigned:
      return json.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
                 ? Value::Int(json.get<int64_t>())
                 : heap.Fail("an integer needs more than 64 bits");
    case Type::number_integer:
      return Value::Int(json.get<int64_t>());
    case Type::string:
      return TextOf(heap, json.get_ref<const std::string&>(), is_client);
    case Type::array: {
      Value list = heap.New<List>(Kind::kList);
      for (const auto& item : json) {
        if (!list.as<List>().Append(ValueOf(heap, item, is_client))) {
          break;
        }
      }
      return list;
    }
    case Type::object: {
      Value dict = heap.New<Dict>(Kind::kDict);
      for (const auto& [key, item] : json.items()) {
        if (!dict.as<Dict>().Add(TextOf(heap, key, is_client), ValueOf(heap, item, is_client))) {
          break;
        }
      }
      return dict;
    }
    default:
      return heap.Fail("binary values are not supported");
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::shared_ptr<const Node> root)
    : root_(std::move(root)), loops_over_content_(LoopsOverContent(*root_)) {}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return TemplateSyntaxError(1, "longer than 1 MiB");
  }
  if (!IsUtf8(source)) {
    return TemplateSyntaxError(1, "not UTF-8");
  }
  QUIRE_ASSIGN_OR_RETURN(NodePtr root, ParseTemplate(source));
  QUIRE_RETURN_IF_ERROR(ResolveScopes(*root));
  return ChatTemplate(std::move(root));
}

absl::StatusOr<RenderedPrompt> ChatTemplate::Render(const nlohmann::ordered_json& client_variables,
                                                    const nlohmann::ordered_json& model_variables,
                                                    const TemplateLimits& limits,
                                                    absl::CivilSecond now) const {
  Budget budget(limits);
  Heap heap(budget);
  const Value values = ValueOf(heap, client_variables, true);
  const Value own_values = ValueOf(heap, model_variables, false);
  if (!values.is(Kind::kDict) || !own_values.is(Kind::kDict)) {
    heap.Fail("the variables are no object");
  }
  QUIRE_RETURN_IF_ERROR(budget.status());
  auto& variables = values.as<Dict>();
  for (const auto& [key, value] : own_values.as<Dict>().items) {
    if (variables.Find(key) == nullptr) {
      variables.Add(key, value);
    }
  }
  RenderedPrompt prompt = Interpreter(heap, values, now).Run(*root_);
  QUIRE_RETURN_IF_ERROR(budget.status());
  return prompt;
}

}  // namespace quire
