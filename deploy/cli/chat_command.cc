#include "deploy/cli/chat_command.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/command_line.h"
#include "common/http/http_client.h"
#include "common/json/json.h"
#include "deploy/cli/chat_session.h"
#include "deploy/cli/chat_terminal.h"
#include "deploy/cli/describe_error.h"
#include "deploy/cli/flag_table.h"
#include "deploy/cli/openai_server.h"

namespace quire {
namespace {

constexpr char kChatUsage[] =
    R"(usage: quire chat [flags] [-]

    --base-url URL                   http://HOST:PORT, https://HOST:PORT or unix:PATH; default
                                     http://127.0.0.1:8000
    --model NAME                     default: the first of the server's /v1/models
    --system TEXT                    the system's message
    --max-tokens N                   output tokens of an answer
    --temperature X --top-p X
    --seed N                         the same seed gives the same answers
    -                                send all of standard input as one message

Without '-' each line of standard input is a message. /help lists the commands.
)";

constexpr char kHelp[] =
    R"(/system TEXT    replace the system's message; without TEXT: drop it
/clear          forget the conversation
/regenerate     ask for the last answer anew
/save FILE      write the conversation as JSON
/quit           end, as Ctrl-D
Ctrl-C          stop the answer, and keep what came; at the prompt: end
)";

constexpr std::array<std::string_view, 6> kCommands = {
    "/system", "/clear", "/regenerate", "/save", "/help", "/quit"};

struct ChatOptions {
  std::string base_url = "http://127.0.0.1:8000";
  std::string system;
  bool reads_one_message = false;
  OrderedJson parameters = OrderedJson::object();
  ServerAccess access;
};

absl::StatusOr<ChatOptions> ParseChatArguments(std::vector<std::string> args) {
  ChatOptions o;
  if (!args.empty() && args.back() == "-") {
    o.reads_one_message = true;
    args.pop_back();
  }
  FlagTable flags;
  AddServerAccessFlags(o.access, flags);
  flags.Text("base-url", [&](const std::string& v) { o.base_url = v; });
  flags.Utf8Text("model", [&](const std::string& v) { o.parameters["model"] = v; });
  flags.Utf8Text("system", [&](const std::string& v) { o.system = v; });
  flags.Int32("max-tokens", [&](int32_t n) { o.parameters["max_tokens"] = n; });
  flags.Double("temperature", [&](double x) { o.parameters["temperature"] = x; });
  flags.Double("top-p", [&](double x) { o.parameters["top_p"] = x; });
  flags.Uint64("seed", [&](uint64_t n) { o.parameters["seed"] = n; });
  QUIRE_RETURN_IF_ERROR(flags.Parse(args));
  return o;
}

void PrintError(const absl::Status& status) {
  std::fprintf(stderr, "quire: chat: %s\n", DescribeError(status).c_str());
}

std::string SpeedOf(const ChatAnswer& answer) {
  std::string line = absl::StrCat(*answer.num_tokens, " tokens");
  const double seconds =
      static_cast<double>(answer.last_text_at - answer.first_text_at) / kNanosPerSecond;
  if (*answer.num_tokens > 1 && seconds > 0) {
    absl::StrAppendFormat(&line, ", %.1f tokens/s", (*answer.num_tokens - 1) / seconds);
  }
  if (answer.finish_reason == "length") {
    absl::StrAppend(&line, ", cut at the limit of tokens");
  }
  return line;
}

// Returns `text` without trailing line ends, which a pasted command may have.
std::string_view WithoutLineEnds(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

// Returns "/save" for "/save FILE".
std::string_view NameOf(std::string_view line) { return line.substr(0, line.find_first_of(" \n")); }

// Returns "FILE" for "/save FILE".
std::string ArgumentOf(std::string_view line) {
  line = WithoutLineEnds(line);
  return std::string(line.substr(std::min(NameOf(line).size() + 1, line.size())));
}

// Returns true if `line` begins with '/' and is one line, or if it begins with a name of kCommands.
// Any other text of several lines is a message, such as pasted code that begins with a comment.
bool IsCommand(std::string_view line) {
  return line.starts_with('/') &&
         (WithoutLineEnds(line).find('\n') == std::string_view::npos ||
          std::find(kCommands.begin(), kCommands.end(), NameOf(line)) != kCommands.end());
}

// Reads lines, and runs each as a command or sends it as a message. Ask and Command return false
// after a failure. Run then ends, unless standard input is a terminal.
class Chat {
 public:
  Chat(ChatSession& session, ChatTerminal& terminal) : session_(session), terminal_(terminal) {}

  // Returns the exit code.
  int Run() {
    terminal_.WriteNote("/help lists the commands");
    while (true) {
      const absl::StatusOr<std::string> line = terminal_.ReadLine();
      if (absl::IsOutOfRange(line.status()) || absl::IsCancelled(line.status())) {
        return 0;
      }
      if (!line.ok()) {
        PrintError(line.status());
        if (terminal_.is_interactive() && absl::IsInvalidArgument(line.status())) {
          continue;
        }
        return 1;
      }
      const bool is_command = IsCommand(*line);
      if (is_command && NameOf(*line) == "/quit") {
        return 0;
      }
      const bool is_good = is_command ? Command(*line) : line->empty() || Ask(*line);
      if (!is_good && !terminal_.is_interactive()) {
        return 1;
      }
    }
  }

  bool Ask(const std::string& message) {
    return Answer(
        [&](const ChatSession::OnText& on_text) { return session_.Ask(message, on_text); });
  }

 private:
  bool Command(const std::string& line) {
    const std::string_view name = NameOf(line);
    const std::string argument = ArgumentOf(line);
    if (name == "/system") {
      session_.SetSystem(argument);
    } else if (name == "/clear") {
      session_.Clear();
    } else if (name == "/save") {
      return Save(argument);
    } else if (name == "/help") {
      std::fputs(kHelp, stdout);
    } else if (name == "/regenerate") {
      if (!session_.can_regenerate()) {
        PrintError(absl::FailedPreconditionError("there is no answer yet"));
        return false;
      }
      return Answer(
          [&](const ChatSession::OnText& on_text) { return session_.Regenerate(on_text); });
    } else {
      PrintError(absl::InvalidArgumentError(
          absl::StrCat("no command ", ToAbsl(name), "; a message must not begin with /")));
      return false;
    }
    return true;
  }

  bool Save(const std::string& path) {
    std::ofstream file(path);
    file << session_.Messages().dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
    file.close();
    if (path.empty() || !file) {
      PrintError(absl::UnavailableError(absl::StrCat("/save FILE: cannot write ", path)));
      return false;
    }
    return true;
  }

  bool Answer(const std::function<ChatAnswer(const ChatSession::OnText&)>& ask) {
    ChatAnswer answer;
    terminal_.RunInterruptibly(
        [&] { answer = ask([&](std::string_view text) { terminal_.WriteAnswer(text); }); },
        [&] { session_.Cancel(); });
    terminal_.EndAnswer();
    if (answer.status.ok()) {
      if (answer.num_tokens.has_value()) {
        terminal_.WriteNote(SpeedOf(answer));
      }
      return true;
    }
    if (absl::IsCancelled(answer.status)) {
      terminal_.WriteNote(answer.text.empty() ? "stopped" : "stopped; the part that came is kept");
      return true;
    }
    PrintError(answer.status);
    terminal_.WriteNote(answer.text.empty()
                            ? "the conversation is unchanged; /regenerate asks again"
                            : "the part that came is kept; /regenerate asks again");
    return false;
  }

  ChatSession& session_;
  ChatTerminal& terminal_;
};

absl::Status SetModel(const OpenAiServer& server, OrderedJson& parameters) {
  if (!parameters.contains("model")) {
    HttpClient client(server.client);
    QUIRE_ASSIGN_OR_RETURN(const OpenAiModel model, AskModel(client, server));
    parameters["model"] = model.name;
  }
  return absl::OkStatus();
}

}  // namespace

int RunChat(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(kChatUsage, stdout);
    std::fputs(kServerAccessUsage, stdout);
    return 0;
  }
  absl::StatusOr<ChatOptions> options = ParseChatArguments(args);
  absl::StatusOr<OpenAiServer> server =
      options.ok() ? OpenAiServerOf(options->base_url, options->access) : options.status();
  if (!server.ok()) {
    PrintError(server.status());
    return kExitUsage;
  }
  if (const absl::Status status = SetModel(*server, options->parameters); !status.ok()) {
    PrintError(status);
    return 1;
  }
  ChatTerminal terminal;
  ChatSession session(*std::move(server), std::move(options->parameters));
  session.SetSystem(options->system);
  Chat chat(session, terminal);
  if (!options->reads_one_message) {
    return chat.Run();
  }
  const absl::StatusOr<std::string> message = terminal.ReadAll();
  if (!message.ok()) {
    PrintError(message.status());
    return 1;
  }
  return chat.Ask(*message) ? 0 : 1;
}

}  // namespace quire
