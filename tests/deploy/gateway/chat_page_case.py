"""What the tests of chat_page_browser.py share: a tab of the browser, and what a user does in it."""
import argparse
import unittest

from playwright.sync_api import expect

# The arguments of chat_page_browser.py, and `browser`.
OPTIONS = argparse.Namespace()


class Case(unittest.TestCase):
    """A new tab for each test. A message in the console, a policy violation or scrolling sideways fails it."""
    width, height, scheme, touch = 1280, 800, "light", False

    def setUp(self):
        self.complaints = []
        self.context = OPTIONS.browser.new_context(viewport={"width": self.width, "height": self.height},
                                                   color_scheme=self.scheme, has_touch=self.touch)
        self.addCleanup(self.context.close)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.page.set_default_timeout(30000)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.add_init_script("document.addEventListener('securitypolicyviolation', "
                                  "(e) => console.error('policy: ' + e.violatedDirective));")

    def check_page(self, *expected):
        """`expected`: parts of the messages that the browser itself writes for a refused request."""
        self.assertFalse(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))
        left = [each for each in self.complaints if not any(part in each for part in expected)]
        self.assertEqual(left, [])

    def shot(self, name):
        if OPTIONS.shots:
            self.page.screenshot(path=f"{OPTIONS.shots}/{name}-{self.width}-{self.scheme}.png")

    @property
    def message(self):
        return self.page.get_by_label("Message", exact=True)

    @property
    def answer(self):
        return self.page.locator("article.answer").last

    def send(self, text):
        self.message.fill(text)
        self.message.press("Enter")

    def wait_for_end(self):
        expect(self.page.locator("body")).not_to_have_class("busy", timeout=60000)

    def ask(self, text):
        self.send(text)
        self.wait_for_end()
        return self.answer.locator(".body").text_content()

    def open_settings(self):
        if not self.page.locator("#settings").is_visible():
            self.page.get_by_role("button", name="Settings", exact=True).click()

    def close_settings(self):
        if self.width < 900:
            self.page.get_by_role("button", name="Close settings").click()

    def turn_on_logprobs(self):
        self.open_settings()
        self.page.get_by_label("Log-probabilities").check()
        self.close_settings()
