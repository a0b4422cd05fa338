// ChatTemplate renders a model's chat template as Hugging Face transformers does: the Jinja of its
// ImmutableSandboxedEnvironment (trim_blocks, lstrip_blocks, break, continue, generation), with
// tojson, raise_exception and strftime_now. The template and the variables may be hostile.
//
// A template is refused if it needs includes or inheritance, recursive loops, integers beyond 64
// bits, names that are not ASCII, or filters, tests and methods that builtins.h does not have.
//
// Thread safety: a ChatTemplate does not change; any number of threads may render it at once.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_CHAT_TEMPLATE_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_CHAT_TEMPLATE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "nlohmann/json.hpp"

#include "deploy/gateway/template/ast.h"
#include "deploy/gateway/template/budget.h"
#include "deploy/gateway/template/rendered_prompt.h"

namespace quire {

class ChatTemplate {
 public:
  // Errors: kInvalidArgument, reason TEMPLATE_SYNTAX; the message names the line.
  // Cost: linear; a source has at most 1 MiB.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source);

  // True if the template loops over the contents of messages (content_loop.h), and so needs lists
  // of parts instead of strings.
  bool loops_over_content() const { return loops_over_content_; }

  // Returns the text, and which of its bytes are the client's. client_variables is a JSON object
  // with messages, tools, add_generation_prompt, and so on; all its strings and keys are client
  // text. model_variables is a JSON object with bos_token, eos_token and the like, which are not
  // client text. If both define a variable, the value in client_variables counts. `now` is the
  // local time for strftime_now.
  // Errors: kInvalidArgument with one of these reasons: TEMPLATE_EXCEPTION if the template calls
  // raise_exception, whose message may contain text of the variables; TEMPLATE_LIMIT; TEMPLATE for
  // an operation that raises any other exception in Python, or that is not supported.
  absl::StatusOr<RenderedPrompt> Render(const nlohmann::ordered_json& client_variables,
                                        const nlohmann::ordered_json& model_variables,
                                        const TemplateLimits& limits,
                                        absl::CivilSecond now) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const Node> root);

  std::shared_ptr<const Node> root_;
  bool loops_over_content_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_CHAT_TEMPLATE_H_
