// The page /top of the HTTP port: `quire top` for a browser. The page is one text, compiled into
// the program, and requests nothing except /top.json.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_SCHEDULER_TOP_PAGE_H_
#define QUIRE_SCHEDULER_TOP_PAGE_H_

#include "common/http/http_message.h"

namespace quire {

// Returns the page with a content security policy: the browser runs only the page's own script and
// style, loads nothing from other hosts, and shows the page in no frame.
HttpResponse TopPage();

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TOP_PAGE_H_
