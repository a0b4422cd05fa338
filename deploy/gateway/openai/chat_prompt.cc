#include "deploy/gateway/openai/chat_prompt.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quire {
namespace {

// Bounds chat_template_kwargs, because copying an object takes time quadratic in its members. No
// template has so many variables.
constexpr size_t kMaxTemplateVariables = 64;
// Bounds the arguments of all tool calls together; the scheduler bounds a prompt by the same size.
// Parsed arguments take many times the memory of their text.
constexpr size_t kMaxArgumentBytes = 1 << 20;
constexpr std::string_view kReservedVariables[] = {
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
};

// Returns the text of one part of a content, or nullopt if the part has no text.
std::optional<std::string> ReadPart(OrderedJson& part,
                                    const std::string& path,
                                    JsonFields& fields) {
  if (part.is_string()) {
    return std::move(part.get_ref<std::string&>());
  }
  if (!part.is_object()) {
    fields.Fail("FIELD_TYPE", path, "must be a string or an object");
    return std::nullopt;
  }
  JsonFields members(part, absl::StrCat(fields.path(), path, "."));
  std::string type = members.Text("type").value_or("");
  std::optional<std::string> text;
  if (type == "text" || type == "input_text") {
    text = members.Text("text");
  } else if (type == "refusal" || type == "thinking") {
    text = members.Text(type);
  } else if (type.empty()) {
    members.Fail("MISSING_FIELD", "type", "must be set");
  } else {
    members.Refuse("type");
  }
  fields.Keep(members.status());
  return text;
}

// Returns the texts of a message's content.
std::vector<std::string> ReadTexts(JsonFields& message) {
  std::vector<std::string> texts;
  OrderedJson* const content = message.Any("content");
  if (content == nullptr) {
    return texts;
  }
  if (content->is_string()) {
    texts.push_back(std::move(content->get_ref<std::string&>()));
  } else if (!content->is_array()) {
    message.Fail("FIELD_TYPE", "content", "must be a string or an array of parts");
  } else {
    for (size_t i = 0; i < content->size(); ++i) {
      auto text = ReadPart((*content)[i], absl::StrCat("content[", i, "]"), message);
      if (text.has_value()) {
        texts.push_back(*std::move(text));
      }
    }
  }
  return texts;
}

// Converts a message's content as vLLM does, except that a part sent as a string becomes an object
// like the other parts.
OrderedJson ReadContent(JsonFields& message, ContentFormat format) {
  std::vector<std::string> texts = ReadTexts(message);
  if (format == ContentFormat::kString) {
    std::erase(texts, "");
    return absl::StrJoin(texts, "\n");
  }
  OrderedJson parts = OrderedJson::array();
  for (std::string& text : texts) {
    OrderedJson part = OrderedJson::object();
    AddMember("type", "text", part);
    AddMember("text", std::move(text), part);
    parts.push_back(std::move(part));
  }
  return parts;
}

// Replaces the arguments, which are a JSON text, by their parsed value.
void ParseArguments(JsonFields& function, OrderedJson& function_json, size_t& bytes_left) {
  const std::optional<std::string> text = function.Text("arguments");
  if (!function.status().ok()) {
    return;
  }
  OrderedJson arguments = OrderedJson::object();
  if (text.has_value() && !text->empty()) {
    if (text->size() > bytes_left) {
      function.Fail("FIELD_RANGE", "arguments", "all arguments together exceed 1 MiB");
      return;
    }
    bytes_left -= text->size();
    absl::StatusOr<OrderedJson> parsed = ParseOrderedJson(*text);
    if (!parsed.ok()) {
      function.Fail("FIELD_TYPE", "arguments", "must be valid JSON");
      return;
    }
    arguments = *std::move(parsed);
  }
  if (function.Has("arguments")) {
    function_json["arguments"] = std::move(arguments);
  } else {
    AddMember("arguments", std::move(arguments), function_json);
  }
}

void ReadToolCall(OrderedJson& call,
                  const std::string& path,
                  JsonFields& message,
                  size_t& bytes_left) {
  if (!call.is_object()) {
    message.Fail("FIELD_TYPE", path, "must be an object");
    return;
  }
  JsonFields members(call, absl::StrCat(message.path(), path, "."));
  OrderedJson* const function = members.Object("function");
  if (function == nullptr) {
    members.Fail("MISSING_FIELD", "function", "must be set");
  } else {
    JsonFields function_members(*function, absl::StrCat(members.path(), "function."));
    if (!function_members.Text("name").has_value()) {
      function_members.Fail("MISSING_FIELD", "name", "must be set");
    }
    ParseArguments(function_members, *function, bytes_left);
    members.Keep(function_members.status());
  }
  message.Keep(members.status());
}

std::optional<std::string> ReadReasoning(JsonFields& message) {
  std::optional<std::string> reasoning = message.Text("reasoning");
  if (!reasoning.has_value() || reasoning->empty()) {
    reasoning = message.Text("reasoning_content");
  }
  return reasoning;
}

void ReadAssistantFields(JsonFields& message,
                         std::optional<std::string> reasoning,
                         OrderedJson& result,
                         size_t& bytes_left) {
  if (OrderedJson* const calls = message.Array("tool_calls"); calls != nullptr) {
    for (size_t i = 0; i < calls->size(); ++i) {
      ReadToolCall((*calls)[i], absl::StrCat("tool_calls[", i, "]"), message, bytes_left);
    }
    AddMember("tool_calls", std::move(*calls), result);
  }
  message.Refuse("function_call");
  message.Refuse("audio");
  if (reasoning.has_value()) {
    AddMember("reasoning", *reasoning, result);
    AddMember("reasoning_content", *std::move(reasoning), result);
  }
}

// Returns the message with the fields that templates know. Drops all other fields.
OrderedJson ReadMessage(OrderedJson& json,
                        const std::string& path,
                        ContentFormat format,
                        JsonFields& fields,
                        size_t& argument_bytes_left) {
  OrderedJson result = OrderedJson::object();
  if (!json.is_object()) {
    fields.Fail("FIELD_TYPE", path, "must be an object");
    return result;
  }
  JsonFields message(json, absl::StrCat(fields.path(), path, "."));
  const std::string role = message.Text("role").value_or("");
  if (role.empty()) {
    message.Fail("MISSING_FIELD", "role", "must be set");
  }
  result.get_ref<OrderedJson::object_t&>().reserve(8);  // the members added below
  std::optional<std::string> reasoning;
  if (role == "assistant") {
    reasoning = ReadReasoning(message);
  }
  if (reasoning.has_value()) {
    AddMember("thinking", *reasoning, result);  // transformers puts it first
  }
  AddMember("role", role, result);
  AddMember("content", ReadContent(message, format), result);
  if (role == "assistant") {
    ReadAssistantFields(message, std::move(reasoning), result, argument_bytes_left);
  } else if (role == "tool") {
    if (auto id = message.Text("tool_call_id")) {
      AddMember("tool_call_id", *std::move(id), result);
    }
  }
  if (auto name = message.Text("name")) {
    AddMember("name", *std::move(name), result);
  }
  fields.Keep(message.status());
  return result;
}

OrderedJson ReadMessages(ContentFormat format, JsonFields& fields) {
  OrderedJson result = OrderedJson::array();
  OrderedJson* const messages = fields.Array("messages");
  if (messages == nullptr || messages->empty()) {
    fields.Fail("MISSING_FIELD", "messages", "must be set, and must not be empty");
    return result;
  }
  size_t argument_bytes_left = kMaxArgumentBytes;
  for (size_t i = 0; i < messages->size() && fields.status().ok(); ++i) {
    result.push_back(ReadMessage(
        (*messages)[i], absl::StrCat("messages[", i, "]"), format, fields, argument_bytes_left));
  }
  return result;
}

// Moves the members of `from` to `to`: first the members that `first` names (null if `from` lacks
// them), then the others.
void AddInOrder(std::initializer_list<std::string_view> first, OrderedJson& from, OrderedJson& to) {
  auto& members = from.get_ref<OrderedJson::object_t&>();
  to.get_ref<OrderedJson::object_t&>().reserve(first.size() + members.size());
  for (const std::string_view name : first) {
    const auto member = members.find(std::string(name));
    AddMember(
        std::string(name), member == members.end() ? OrderedJson() : std::move(member->second), to);
  }
  for (auto& [key, value] : members) {
    if (std::find(first.begin(), first.end(), key) == first.end()) {
      AddMember(key, std::move(value), to);
    }
  }
}

OrderedJson ReadTool(OrderedJson& json, const std::string& path, JsonFields& fields) {
  OrderedJson result = OrderedJson::object();
  if (!json.is_object()) {
    fields.Fail("FIELD_TYPE", path, "must be an object");
    return result;
  }
  JsonFields tool(json, path + ".");
  if (tool.Text("type").value_or("function") != "function") {
    tool.Refuse("type");
  }
  OrderedJson* const function = tool.Object("function");
  if (function == nullptr) {
    tool.Fail("MISSING_FIELD", "function", "must be set");
  } else {
    JsonFields members(*function, tool.path() + "function.");
    if (!members.Text("name").has_value()) {
      members.Fail("MISSING_FIELD", "name", "must be set");
    }
    members.Text("description");
    members.Object("parameters");
    tool.Keep(members.status());
  }
  fields.Keep(tool.status());
  if (fields.status().ok()) {
    OrderedJson ordered = OrderedJson::object();
    AddInOrder({"name", "description", "parameters"}, *function, ordered);
    AddMember("type", "function", result);
    AddMember("function", std::move(ordered), result);
  }
  return result;
}

OrderedJson ReadTools(JsonFields& fields) {
  OrderedJson* const tools = fields.Array("tools");
  const OrderedJson* const choice = fields.Any("tool_choice");
  const bool has_tools = tools != nullptr && !tools->empty();
  const bool is_none = choice != nullptr && *choice == "none";
  const bool is_auto = choice == nullptr || *choice == "auto";
  if (!is_none && (has_tools || !is_auto)) {
    fields.Fail("UNSUPPORTED",
                choice == nullptr ? "tools" : "tool_choice",
                "this server makes no tool calls; tool_choice must be \"none\"");
  }
  if (tools == nullptr) {
    return nullptr;
  }
  OrderedJson result = OrderedJson::array();
  for (size_t i = 0; i < tools->size() && fields.status().ok(); ++i) {
    result.push_back(ReadTool((*tools)[i], absl::StrCat("tools[", i, "]"), fields));
  }
  return result;
}

OrderedJson ReadDocuments(JsonFields& fields) {
  OrderedJson* const documents = fields.Array("documents");
  if (documents == nullptr) {
    return nullptr;
  }
  for (const OrderedJson& document : *documents) {
    const bool is_valid =
        document.is_object() && std::all_of(document.begin(), document.end(), [](const auto& text) {
          return text.is_string();
        });
    if (!is_valid) {
      fields.Fail("FIELD_TYPE", "documents", "must hold objects whose values are strings");
      return nullptr;
    }
  }
  return std::move(*documents);
}

void ReadTemplateVariables(JsonFields& fields, OrderedJson& variables) {
  fields.Refuse("chat_template");
  OrderedJson* const kwargs = fields.Object("chat_template_kwargs");
  if (kwargs == nullptr) {
    return;
  }
  if (kwargs->size() > kMaxTemplateVariables) {
    fields.Fail("FIELD_RANGE", "chat_template_kwargs", "has too many members (limit 64)");
    return;
  }
  for (auto& [key, value] : kwargs->get_ref<OrderedJson::object_t&>()) {
    if (std::ranges::find(kReservedVariables, key) != std::end(kReservedVariables)) {
      fields.Fail("CONFLICTING_FIELDS",
                  "chat_template_kwargs",
                  "has a member that a field of the request sets");
      return;
    }
    AddMember(key, std::move(value), variables);
  }
}

}  // namespace

ChatPrompt ReadChatPrompt(JsonFields& fields, ContentFormat format) {
  ChatPrompt prompt;
  const bool adds_prompt = fields.Bool("add_generation_prompt").value_or(true);
  prompt.continues_final_message = fields.Bool("continue_final_message").value_or(false);
  if (prompt.continues_final_message && adds_prompt) {
    fields.Fail(
        "CONFLICTING_FIELDS", "continue_final_message", "needs add_generation_prompt to be false");
  }
  prompt.variables = OrderedJson::object();
  // Reserves room for all members, because growth would copy the messages.
  prompt.variables.get_ref<OrderedJson::object_t&>().reserve(4 + kMaxTemplateVariables);
  AddMember("messages", ReadMessages(format, fields), prompt.variables);
  AddMember("tools", ReadTools(fields), prompt.variables);
  AddMember("documents", ReadDocuments(fields), prompt.variables);
  AddMember("add_generation_prompt", adds_prompt, prompt.variables);
  ReadTemplateVariables(fields, prompt.variables);
  return prompt;
}

}  // namespace quire
