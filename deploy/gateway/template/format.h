// Python's two ways of formatting: "%s" % value and "{}".format(value). What few templates use (%c,
// '!r', thousands separators of floats, ...) fails instead.
//
// Thread safety: free functions for one rendering.
// Errors:        what raises in Python, and what is not supported, fails the rendering.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_FORMAT_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_FORMAT_H_

#include "deploy/gateway/template/value.h"

namespace quire {

// format % values, where values is a tuple, a dict, or one value. REQUIRES: format is a string.
Value FormatPercent(Heap& heap, const Value& format, const Value& values);

// The method str.format: positional[0] is the format.
Value FormatMethod(Heap& heap, Arguments& arguments);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_FORMAT_H_
