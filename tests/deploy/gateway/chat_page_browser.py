#!/usr/bin/env python3
"""Uses the gateway's page in headless Chromium. By hand; needs Debian's chromium, and pip install playwright.

    chat_page_browser.py [--shots DIRECTORY] [TESTS...]     # against fake_gateway.py
    chat_page_browser.py --url http://127.0.0.1:8000/       # against a gateway that runs
"""
import argparse
import pathlib
import re
import shutil
import sys
import time
import unittest

from playwright.sync_api import expect, sync_playwright

from chat_page_case import OPTIONS, Case
from fake_gateway import CODE, MARKUP, PROSE, FakeGateway

LONG_TOKENS = 50000


class WideTest(Case):

    def setUp(self):
        super().setUp()
        self.gateway = FakeGateway()
        self.gateway.__enter__()
        self.addCleanup(self.gateway.__exit__)
        self.page.goto(self.gateway.url)
        expect(self.page.locator("#ready")).to_have_text("ready")

    def tearDown(self):
        self.assertEqual(self.gateway.unknown_paths, [])

    def last_request(self):
        return self.gateway.requests[-1][1]

    def test_text_appears_while_it_is_generated_and_ends_with_its_numbers(self):
        self.shot("empty")
        self.send("slow 300")
        expect(self.answer.locator(".body")).to_contain_text(" 3")
        self.assertNotIn(" 300", self.answer.text_content())
        self.assertIn("busy", self.page.locator("body").get_attribute("class"))
        self.wait_for_end()
        self.assertEqual(self.answer.locator(".body").text_content(), "".join(f" {i}" for i in range(1, 301)))
        facts = self.answer.locator(".facts").text_content()
        self.assertRegex(facts, r"^300 tokens · [0-9.]+ tokens/s · first after [0-9.]+ s$")
        self.assertEqual(self.page.locator("#model").text_content(), "fake-model-1b")
        self.assertEqual(self.page.get_by_role("link", name="Load of the server").get_attribute("href"), "top")
        self.check_page()

    def test_characters_that_arrive_in_pieces_are_whole(self):
        self.assertEqual(self.ask("bytes"), "Grüße 😀 العربية 漢字")
        self.check_page()

    def test_a_conversation_sends_its_turns_and_the_settings(self):
        self.open_settings()
        for label, value in {"System prompt": "Be brief.", "Temperature": "0.5", "Top p": "0.9", "Top k": "40", "Max tokens": "200",
                             "Seed": "7", "Stop strings": "END\n\\n\\n"}.items():
            self.page.get_by_label(label, exact=True).fill(value)
        self.close_settings()
        first = self.ask("hello there")
        self.assertEqual(first, "You said: hello there")
        self.ask("explain it")
        self.shot("chat")
        body = self.last_request()
        self.assertEqual(body["messages"], [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello there"},
            {"role": "assistant", "content": first}, {"role": "user", "content": "explain it"}])
        expected = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "max_tokens": 200, "seed": 7, "stop": ["END", "\n\n"],
                    "stream": True, "model": "fake-model-1b"}
        self.assertEqual({name: body[name] for name in expected}, expected)
        self.assertNotIn("logprobs", body)
        self.check_page()

    def test_a_setting_out_of_range_is_named_and_nothing_is_sent(self):
        self.open_settings()
        self.page.get_by_label("Top p").fill("1.5")
        self.close_settings()
        self.send("hello")
        expect(self.page.get_by_label("Top p")).to_be_focused()
        self.assertEqual(self.gateway.requests, [])
        self.assertEqual(self.message.input_value(), "hello")
        self.check_page()

    def test_stop_by_button_and_by_escape_ends_the_stream_and_keeps_the_text(self):
        for stop in (lambda: self.page.get_by_role("button", name="Stop").click(), lambda: self.page.keyboard.press("Escape")):
            aborted = self.gateway.num_aborted
            self.send("slow 1000")
            expect(self.answer.locator(".body")).to_contain_text(" 5")
            stop()
            self.wait_for_end()
            text = self.answer.locator(".body").text_content()
            self.assertTrue(text.startswith(" 1 2 3 4 5"))
            expect(self.answer.locator(".facts")).to_contain_text("stopped")
            deadline = time.monotonic() + 10
            while self.gateway.num_aborted == aborted and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertEqual(self.gateway.num_aborted, aborted + 1)
            self.assertEqual(self.answer.locator(".body").text_content(), text)
        self.check_page()

    def test_regenerate_asks_again_with_the_same_turns(self):
        self.ask("hello")
        self.ask("and again")
        before = self.last_request()
        self.assertEqual(self.page.get_by_role("button", name="Regenerate").count(), 1)
        self.page.get_by_role("button", name="Regenerate").click()
        self.wait_for_end()
        self.assertEqual(len(self.gateway.requests), 3)
        self.assertEqual(self.last_request(), before)
        self.assertEqual(self.page.locator(".turn").count(), 2)
        self.check_page()

    def test_the_last_message_can_be_edited_and_sent_again(self):
        self.ask("hello")
        self.ask("frist")
        self.page.get_by_role("button", name="Edit").click()
        area = self.page.get_by_label("Edit the message")
        expect(area).to_be_focused()
        area.press("Escape")
        expect(self.page.get_by_role("button", name="Edit")).to_be_focused()
        self.page.keyboard.press("Enter")
        area.fill("first")
        self.shot("edit")
        area.press("Enter")
        self.wait_for_end()
        self.assertEqual([each["content"] for each in self.last_request()["messages"]], ["hello", "You said: hello", "first"])
        self.assertEqual(self.answer.locator(".body").text_content(), "You said: first")
        self.check_page()

    def test_copy_gives_the_whole_text_as_it_came(self):
        self.ask("code")
        self.answer.get_by_role("button", name="Copy").last.click()
        expect(self.answer.get_by_role("button", name="Copied")).to_be_visible()
        self.assertEqual(self.page.evaluate("navigator.clipboard.readText()"), CODE)
        self.page.locator("figure").first.get_by_role("button").click()
        expect(self.page.locator("figure").first.get_by_role("button", name="Copied")).to_be_visible()
        self.assertEqual(self.page.evaluate("navigator.clipboard.readText()"), 'for i in range(3):\n    print("<b>", i)\n')
        self.check_page()

    def test_clear_empties_the_page_and_can_be_taken_back(self):
        self.ask("hello")
        self.page.get_by_role("button", name="Clear").click()
        self.assertEqual(self.page.locator(".turn").count(), 0)
        self.page.get_by_role("button", name="Bring the cleared conversation back").click()
        self.ask("more")
        self.assertEqual(len(self.last_request()["messages"]), 3)
        self.check_page()

    def test_text_of_the_model_is_text(self):
        self.assertEqual(self.ask("markup"), MARKUP)
        self.assertEqual(self.page.evaluate("window.pwned"), None)
        self.assertEqual(self.answer.locator("img, script, b").count(), 0)
        self.turn_on_logprobs()
        self.assertEqual(self.ask("markup"), MARKUP)
        self.assertEqual(self.answer.locator("img, script, b").count(), 0)
        self.shot("markup")
        self.send("<img src=x onerror='window.pwned=3'>")
        self.wait_for_end()
        self.assertEqual(self.page.evaluate("window.pwned"), None)
        self.check_page()

    def test_fenced_blocks_are_shown_as_code(self):
        self.ask("code")
        self.assertEqual(self.answer.locator("pre").all_text_contents(),
                         ['for i in range(3):\n    print("<b>", i)\n', "   indented\n"])
        self.assertEqual(self.answer.locator("figcaption span").first.text_content(), "python")
        blocks = self.answer.locator(".body > div").all_text_contents()
        self.assertEqual(blocks[-1], "2. second `x` and ``\n```not a fence` at all\n")
        self.shot("code")
        self.check_page()

    def test_a_token_shows_its_alternatives_under_the_pointer(self):
        self.turn_on_logprobs()
        self.ask("explain")
        self.assertEqual(self.last_request()["top_logprobs"], 5)
        tokens = self.answer.locator(".token")
        self.assertEqual(tokens.nth(2).text_content(), " KV")
        tip = self.page.get_by_role("tooltip")
        expect(tip).to_be_hidden()
        tokens.nth(2).hover()
        expect(tip).to_be_visible()
        self.assertEqual(tip.locator(".head").text_content(), "log-probability −0.916")
        self.assertEqual(tip.locator(".row").all_text_contents(), ['" KV"40.0 %', '" other"2.0 %', '"\\n"1.0 %'])
        self.assertEqual(tip.locator(".chosen").text_content(), '" KV"40.0 %')
        self.shot("logprobs")
        tokens.nth(3).hover()  # not among the likeliest
        self.assertEqual(tip.locator(".chosen").text_content(), '" cache"5.0 %')
        self.assertEqual(tip.locator(".row").count(), 4)
        self.assertEqual([tokens.nth(i).get_attribute("class") for i in range(4)], ["token", "token p1", "token p2", "token p4"])
        self.page.mouse.move(5, 5)
        expect(tip).to_be_hidden()
        self.check_page()

    def test_a_token_shows_its_alternatives_under_the_focus(self):
        self.turn_on_logprobs()
        self.assertEqual(self.ask("explain"), PROSE)
        self.answer.locator(".body").evaluate("(body) => body.querySelector('.token').focus()")
        for key, index in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", -1), ("Home", 0)):
            self.page.keyboard.press(key)
            tokens = self.answer.locator(".token")
            expect(tokens.nth(index)).to_be_focused()
        self.page.keyboard.press("ArrowRight")
        tip = self.page.get_by_role("tooltip")
        self.assertIn('" paged"70.0 %', tip.text_content())
        self.assertEqual(self.answer.locator(".token[aria-describedby=tip]").count(), 1)
        self.assertEqual(self.answer.locator(".token[tabindex='0']").count(), 1)
        self.page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
        self.check_page()

    def test_a_completion_streams_with_log_probabilities(self):
        self.page.get_by_role("tab", name="Completion").click()
        self.turn_on_logprobs()
        prompt = self.page.get_by_label("Prompt", exact=True)
        prompt.fill("explain")
        prompt.press("Enter")
        self.wait_for_end()
        self.assertEqual(self.answer.locator(".body").text_content(), PROSE)
        path, body = self.gateway.requests[-1]
        self.assertEqual((path, body["prompt"], body["logprobs"]), ("/v1/completions", "explain", 5))
        self.answer.locator(".token").nth(1).hover()
        self.assertIn('" paged"70.0 %', self.page.get_by_role("tooltip").text_content())
        self.shot("completion")
        self.page.get_by_role("button", name="Regenerate").click()
        self.wait_for_end()
        self.assertEqual(self.gateway.requests[-1][1], body)
        self.check_page()

    def test_keyboard_alone(self):
        self.page.keyboard.type("line one")  # the message has the focus from the beginning
        self.page.keyboard.press("Shift+Enter")
        self.page.keyboard.type("line two")
        self.page.keyboard.press("Enter")
        self.wait_for_end()
        self.assertEqual(self.last_request()["messages"][-1]["content"], "line one\nline two")
        expect(self.message).to_be_focused()
        self.assertEqual(self.message.input_value(), "")
        self.page.keyboard.press("Shift+Tab")
        expect(self.page.get_by_role("button", name="Regenerate")).to_be_focused()
        self.assertNotEqual(self.page.evaluate("getComputedStyle(document.activeElement).outlineStyle"), "none")
        self.page.keyboard.press("Enter")
        self.wait_for_end()
        self.assertEqual(len(self.gateway.requests), 2)
        tab = self.page.get_by_role("tab", name="Chat")
        tab.focus()
        self.page.keyboard.press("ArrowRight")
        expect(self.page.get_by_role("tab", name="Completion")).to_be_focused()
        expect(self.page.get_by_label("Prompt", exact=True)).to_be_visible()
        self.check_page()

    def test_every_control_has_a_name_and_shows_the_focus(self):
        self.ask("code")
        self.page.keyboard.press("Tab")
        seen = []
        for _ in range(60):
            self.page.keyboard.press("Tab")
            name, outline = self.page.evaluate("""() => {
              const it = document.activeElement, label = it.labels && it.labels[0];
              const style = getComputedStyle(it), box = it.closest(".box");
              const shown = style.outlineStyle !== "none" || (box && getComputedStyle(box).outlineStyle !== "none");
              return [it === document.body ? "body" : (it.getAttribute("aria-label") || (label || it).textContent).trim() || it.tagName, shown];
            }""")
            if name == "body":
                continue
            self.assertTrue(outline, name)
            self.assertNotIn(name, ("", "INPUT", "TEXTAREA", "BUTTON"))
            seen.append(name)
        self.assertTrue({"Message", "Conversation", "Regenerate", "Copy"} <= set(seen), seen)
        self.check_page()

    def test_a_screen_reader_is_told_sentences(self):
        self.page.evaluate("""() => {
          window.spoken = [];
          new MutationObserver(() => window.spoken.push(document.getElementById("said").textContent))
            .observe(document.getElementById("said"), { childList: true });
        }""")
        self.ask("explain")
        spoken = self.page.evaluate("window.spoken")
        self.assertIn("when one of them writes to it.", spoken[-1])
        self.assertIn("Answer complete", spoken[-1])
        self.assertLess(len(spoken), 8)
        self.assertEqual(self.page.locator("#said").get_attribute("aria-live"), "polite")

    def test_a_key_is_asked_for_once_and_the_message_is_sent_then(self):
        self.gateway.keys = {"right"}
        self.send("hello")
        key = self.page.get_by_label("API key")
        expect(key).to_be_focused()
        self.shot("key")
        key.fill("wrong")
        key.press("Enter")
        expect(self.page.locator("#key-note")).to_contain_text("does not accept")
        key.fill("right")
        key.press("Enter")
        expect(self.answer.locator(".body")).to_have_text("You said: hello")
        expect(key).to_be_hidden()
        self.page.reload()
        expect(self.page.locator("#ready")).to_have_text("ready")
        self.assertEqual(self.ask("again"), "You said: again")
        self.assertEqual(self.page.evaluate("[localStorage.length, sessionStorage.length]"), [0, 1])
        self.open_settings()
        self.page.get_by_role("button", name="Forget the key").click()
        expect(key).to_be_visible()
        self.assertEqual(self.page.evaluate("sessionStorage.length"), 0)
        self.check_page("401")

    def test_a_server_at_its_limit_tells_when_to_try_again(self):
        self.send("busy")
        problem = self.answer.locator(".problem")
        expect(problem).to_contain_text("The server is at its limit.")
        expect(problem).to_contain_text("too many requests are waiting")
        expect(problem.locator(".countdown")).to_have_text(re.compile(r"wait of \d seconds?\.$"))
        self.shot("limit")
        expect(problem.locator(".countdown")).to_have_text("The wait is over.", timeout=20000)
        problem.get_by_role("button", name="Try again").click()
        self.wait_for_end()
        self.assertEqual(len(self.gateway.requests), 2)
        self.ask("hello")
        self.assertEqual([each["content"] for each in self.last_request()["messages"]], ["hello"])
        expect(self.page.get_by_text("left out of the conversation")).to_be_visible()
        self.check_page("429")

    def test_a_cut_or_failed_stream_keeps_its_text(self):
        self.assertEqual(self.ask("cut"), "These words arrive before the end")
        expect(self.answer.locator(".problem")).to_contain_text("The answer was cut off.")
        self.page.get_by_role("button", name="Try again").click()
        self.wait_for_end()
        self.assertEqual(self.answer.locator(".body").text_content(), "These words arrive before the end")
        self.assertEqual(len(self.gateway.requests), 2)
        self.shot("cut")
        self.assertEqual(self.ask("early"), "A proxy ends this")
        expect(self.answer.locator(".problem")).to_contain_text("The answer was cut off.")
        self.assertEqual(self.ask("fail"), "These words arrive before the error")
        expect(self.answer.locator(".problem")).to_contain_text("no server can continue")
        self.ask("refuse")
        expect(self.answer.locator(".problem")).to_contain_text("temperature: must be in [0, 100]")
        self.ask("empty")
        expect(self.answer.locator(".facts")).to_contain_text("empty answer")
        self.check_page("400", "net::ERR")

    def test_a_server_that_is_gone_is_named(self):
        self.gateway.__exit__()
        self.send("hello")
        expect(self.answer.locator(".problem")).to_contain_text("The connection failed.")
        expect(self.page.locator("#ready")).to_have_text("no answer")
        self.check_page("net::ERR")

    def check_long_answer(self, command):
        self.page.evaluate("""() => {
          window.longest = 0;
          let last = performance.now();
          const tick = () => { const now = performance.now(); window.longest = Math.max(window.longest, now - last); last = now; requestAnimationFrame(tick); };
          tick();
        }""")
        started = time.monotonic()
        self.send(f"{command} {LONG_TOKENS}")
        expect(self.page.locator("body")).not_to_have_class("busy", timeout=120000)
        seconds = time.monotonic() - started
        self.assertTrue(self.answer.locator(".body").text_content().rstrip().endswith(f" {LONG_TOKENS}"))
        self.assertIn("50,000 tokens", self.answer.locator(".facts").text_content())
        self.check_end_is_in_view()
        longest = self.page.evaluate("window.longest")
        print(f"{command}: {LONG_TOKENS} tokens in {seconds:.1f} s, longest frame {longest:.0f} ms", file=sys.stderr)
        self.check_page()

    def check_end_is_in_view(self):
        # Blocks get their true height when the browser paints.
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        root = self.page.locator("#conversation")
        self.assertLess(root.evaluate("(it) => it.scrollHeight - it.scrollTop - it.clientHeight"), 30)

    def test_an_answer_that_is_shown_at_once_ends_in_view(self):
        self.page.evaluate("() => { window.frames_of = requestAnimationFrame; window.requestAnimationFrame = () => 1; }")
        self.ask("count 1500")
        self.page.evaluate("() => { window.requestAnimationFrame = window.frames_of; }")
        self.check_end_is_in_view()
        self.check_page()

    def test_a_reader_who_scrolls_up_stays_there(self):
        self.send("slow 400")
        self.page.get_by_role("button", name="Stop").wait_for()
        self.ask_more_than_a_screen()
        root = self.page.locator("#conversation")
        root.evaluate("(it) => { it.scrollTop = 40; }")
        self.page.wait_for_timeout(500)
        # The browser moves with the text in view when a block above gets its true height.
        self.assertLess(abs(root.evaluate("(it) => it.scrollTop") - 40), 40)
        self.page.keyboard.press("Escape")
        self.check_page()

    def ask_more_than_a_screen(self):
        self.page.set_viewport_size({"width": self.width, "height": 260})
        self.page.wait_for_function("() => { const it = document.getElementById('conversation'); return it.scrollTop > 60; }")


class LongAnswerTest(WideTest):
    """Run alone; a slow machine takes a minute."""

    def test_long_answers(self):
        self.check_long_answer("count")
        self.check_long_answer("line")

    def test_long_answers_with_log_probabilities(self):
        self.turn_on_logprobs()
        self.check_long_answer("count")


class NarrowTest(WideTest):
    width, height, touch = 360, 740, True


class NarrowestTest(WideTest):
    width, height, scheme, touch = 320, 568, "dark", True


class DarkTest(WideTest):
    scheme = "dark"


class RealGatewayTest(Case):

    def setUp(self):
        super().setUp()
        self.page.goto(OPTIONS.url)
        if OPTIONS.key:
            self.page.get_by_label("API key").fill(OPTIONS.key)
            self.page.get_by_label("API key").press("Enter")
        expect(self.page.locator("#ready")).to_have_text("ready")
        self.open_settings()
        self.page.get_by_label("Max tokens").fill("48")
        self.page.get_by_label("Seed").fill("7")
        self.close_settings()

    def test_chat(self):
        text = self.ask("Once upon a time")
        self.assertTrue(text)
        self.assertRegex(self.answer.locator(".facts").text_content(), r"^\d+ tokens?\b")
        self.page.get_by_role("button", name="Regenerate").click()
        self.wait_for_end()
        self.assertEqual(self.answer.locator(".body").text_content(), text)  # the same seed
        self.shot("real-chat")
        self.check_page()

    def test_completion_with_log_probabilities(self):
        self.turn_on_logprobs()
        self.page.get_by_role("tab", name="Completion").click()
        self.page.get_by_label("Prompt", exact=True).fill("Once upon a time")
        self.page.get_by_role("button", name="Complete").click()
        self.wait_for_end()
        self.assertGreater(self.answer.locator(".token").count(), 8)
        self.answer.locator(".token").nth(4).hover()
        rows = self.page.get_by_role("tooltip").locator(".row")
        self.assertGreaterEqual(rows.count(), 5)
        self.shot("real-completion")
        self.check_page()

    def test_stop(self):
        self.open_settings()
        self.page.get_by_label("Max tokens").fill("2000")
        self.close_settings()
        self.send("Tell a long story.")
        expect(self.answer.locator(".body")).not_to_be_empty()
        self.page.keyboard.press("Escape")
        self.wait_for_end()
        self.check_page()


class RealGatewayNarrowTest(RealGatewayTest):
    width, height, touch = 360, 740, True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="page of a gateway that runs; default: the fake one")
    parser.add_argument("--key", help="API key of that gateway")
    parser.add_argument("--shots", type=pathlib.Path, help="directory for pictures of the page")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="default: from PATH, or playwright's own")
    parser.add_argument("tests", nargs="*")
    options = parser.parse_args()
    vars(OPTIONS).update(vars(options))
    if options.shots:
        options.shots.mkdir(parents=True, exist_ok=True)
    real = ["RealGatewayTest", "RealGatewayNarrowTest"]
    fake = ["WideTest", "NarrowTest", "NarrowestTest", "DarkTest", "LongAnswerTest.test_long_answers",
            "LongAnswerTest.test_long_answers_with_log_probabilities"]
    expect.set_options(timeout=20000)
    with sync_playwright() as playwright:
        OPTIONS.browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        run = unittest.main(argv=["chat_page_browser.py", *(options.tests or (real if options.url else fake))],
                            exit=False, verbosity=2)
        OPTIONS.browser.close()
    sys.exit(0 if run.result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
