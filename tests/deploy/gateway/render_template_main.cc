// Renders templates from standard input, for compare_templates.py: each line is a JSON object with
// `template`, and `variables` of the client. Each answer is a line: {"text": ..., "client_text":
// [[begin, end], ...]} or {"error": ..., "reason": ...}.
#include <iostream>
#include <string>

#include "common/base/error.h"
#include "deploy/gateway/template/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<quire::RenderedPrompt> RenderLine(const Json& line) {
  const auto chat_template = quire::ChatTemplate::Parse(line["template"].get<std::string>());
  if (!chat_template.ok()) {
    return chat_template.status();
  }
  const absl::CivilSecond now(2026, 7, 4, 13, 5, 9);
  return chat_template->Render(line["variables"], Json::object(), {}, now);
}

}  // namespace

int main() {
  std::string text;
  while (std::getline(std::cin, text)) {
    const absl::StatusOr<quire::RenderedPrompt> rendered = RenderLine(Json::parse(text));
    Json answer;
    if (rendered.ok()) {
      answer["text"] = rendered->text;
      answer["client_text"] = Json::array();
      for (const quire::ByteRange& range : rendered->client_text) {
        answer["client_text"].push_back({range.begin, range.end});
      }
    } else {
      answer["reason"] = quire::ReasonOf(rendered.status());
      answer["error"] = std::string(rendered.status().message());
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}
