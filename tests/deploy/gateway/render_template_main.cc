// Renders templates from standard input, for the compare_*.py here: each line is a JSON object with
// `template`, `variables` of the client, and perhaps `model_variables`. Each answer is a line:
// {"text": ..., "client_text": [[begin, end], ...]} or {"error": ..., "reason": ...}. Without
// variables: {"loops_over_content": ...}.
#include <iostream>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "deploy/gateway/template/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Json> RenderLine(const Json& line) {
  const auto chat_template = quire::ChatTemplate::Parse(line["template"].get<std::string>());
  if (!chat_template.ok()) {
    return chat_template.status();
  }
  if (!line.contains("variables")) {
    return Json{{"loops_over_content", chat_template->loops_over_content()}};
  }
  const absl::CivilSecond now(2026, 7, 4, 13, 5, 9);
  const auto prompt = chat_template->Render(
      line["variables"], line.value("model_variables", Json::object()), {}, now);
  if (!prompt.ok()) {
    return prompt.status();
  }
  Json ranges = Json::array();
  for (const quire::ByteRange& range : prompt->client_text) {
    ranges.push_back({range.begin, range.end});
  }
  return Json{{"text", prompt->text}, {"client_text", std::move(ranges)}};
}

}  // namespace

int main() {
  std::string text;
  while (std::getline(std::cin, text)) {
    const absl::StatusOr<Json> rendered = RenderLine(Json::parse(text));
    const Json answer = rendered.ok() ? *rendered
                                      : Json{{"reason", quire::ReasonOf(rendered.status())},
                                             {"error", std::string(rendered.status().message())}};
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}
