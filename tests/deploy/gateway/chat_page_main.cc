// Prints the policy of the gateway's page on the first line, then the page, for chat_page_test.py.
#include <iostream>

#include "deploy/gateway/page/chat_page.h"

int main() {
  std::cout << quire::ChatPageSecurityPolicy() << '\n' << quire::ChatPageHtml();
  return std::cout.good() ? 0 : 1;
}
