"""Variables of chat templates: conversations plain and odd, with and without tools and options."""

SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Searches \"everything\" & <more>.\nTwo lines.", "strict": False,
    "parameters": {"type": "object", "required": ["query"], "properties": {
        "query": {"type": "string", "description": "What to search"},
        "limit": {"type": ["integer", "null"], "minimum": 1, "default": 10, "maximum": 1.5e3},
        "kind": {"type": "string", "enum": ["all", "news"], "default": None},
        "filters": {"type": "array", "items": {"type": "object", "properties": {
            "field": {"type": "string"}, "value": {"anyOf": [{"type": "string"}, {"type": "number"}]}}}},
    }}}}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "", "parameters": {"type": "object", "properties": {}},
    "return": {"type": "object", "properties": {"t": {"type": "number", "description": "°C"}}}}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, call_id="abcdefghi"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "You are terse.  "}
CONVERSATIONS = {
    "one turn": [user("Hello!")],
    "three turns": [user("Hi"), assistant("Hello."), user("How are you?")],
    "with system": [SYSTEM, user("Hi"), assistant(" Hello. \n"), user("Bye")],
    "empty contents": [{"role": "system", "content": ""}, user(""), assistant(""), user(" ")],
    "unicode": [SYSTEM, user("Grüße ßẞ 你好 🙂 e\u0301 \u00a0 \u2028 'quoted' \"double\" \\ \x7f"), assistant("σς Σ\t\r\n"), user("İ")],
    "markup": [user("<|im_start|>system {{ x }} {% raw %} <b>&amp;</b></think>"), assistant("<think>a</think>b"), user("c")],
    "reasoning": [user("2+2?"), assistant("4", reasoning_content="Two and two.\n"), user("3+3?"), assistant("<think>\nhm\n</think>\n\n6"), user("And?")],
    "parts": [user([{"type": "text", "text": "Look: "}, {"type": "text", "text": "there"}]), assistant([{"type": "text", "text": "Yes"}]), user("ok")],
    "image": [user([{"type": "image"}, {"type": "text", "text": "What is it?"}])],
    "tool call": [SYSTEM, user("Weather?"), assistant("", tool_calls=[call("get_weather", {"city": "Köln", "days": 3, "deep": {"a": [1, 2.5, None, True]}})]),
                  {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "{\"t\": 20}"}, assistant("20 degrees."), user("Thanks")],
    "tool call as text": [user("Go"), assistant(None, tool_calls=[call("search", "{\"query\": \"x\"}")]), {"role": "tool", "tool_call_id": "abcdefghi", "content": "found"}],
    "two tool calls": [user("Both"), assistant("Calling.", tool_calls=[call("search", {"query": "a"}), call("get_weather", {}, "123456789")], reasoning_content="I call."),
                       {"role": "tool", "name": "search", "tool_call_id": "abcdefghi", "content": "A"}, {"role": "tool", "name": "get_weather", "tool_call_id": "123456789", "content": "B"}],
    "ends with assistant": [user("Continue"), assistant("The sky is")],
    "two users": [user("a"), user("b")],
    "assistant first": [assistant("a"), user("b")],
    "two systems": [SYSTEM, SYSTEM, user("x")],
    "unknown role": [{"role": "wizard", "content": "abra"}, user("x")],
    "developer": [{"role": "developer", "content": "Be brief."}, user("x")],
    "no content": [{"role": "user"}, assistant("x")],
    "numbers": [user(12), assistant(1.5), user(True)],
    "no messages": [],
    "list of tool results": [user("Go"), assistant("", tool_calls=[call("search", {"query": "ä"})]), {"role": "tool", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
}

OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": [SEARCH, WEATHER]},
    {"add_generation_prompt": True, "tools": [WEATHER], "enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
    {"add_generation_prompt": True, "documents": [{"title": "T", "text": "Doc", "doc_id": 1}], "enable_thinking": True, "thinking": True,
     "reasoning_effort": "high", "custom_instructions": "x", "builtin_tools": ["wolfram_alpha"], "date_string": "1 Jan"},
]


def all_variables():
    """Yields a name and the variables, as JSON has them."""
    for name, messages in CONVERSATIONS.items():
        for i, options in enumerate(OPTIONS):
            yield f"{name}/{i}", {"messages": messages, "tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>",
                                  "unk_token": "<unk>", "pad_token": "<pad>", **options}
