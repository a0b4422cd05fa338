// Renders templates from standard input, for compare_templates.py: each line is a JSON object with
// `template`, or `path`, and `variables`. Each answer is a line: {"text": ...} or {"error": ...,
// "reason": ...}.
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "common/base/error.h"
#include "deploy/gateway/template/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<std::string> RenderLine(const Json& line) {
  const auto chat_template = quire::ChatTemplate::Parse(line["template"].get<std::string>());
  if (!chat_template.ok()) {
    return chat_template.status();
  }
  return chat_template->Render(line["variables"], {}, absl::CivilSecond(2026, 7, 4, 13, 5, 9));
}

}  // namespace

int main() {
  std::string text;
  while (std::getline(std::cin, text)) {
    const absl::StatusOr<std::string> rendered = RenderLine(Json::parse(text));
    Json answer;
    if (rendered.ok()) {
      answer["text"] = *rendered;
    } else {
      answer["reason"] = quire::ReasonOf(rendered.status());
      answer["error"] = std::string(rendered.status().message());
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}
