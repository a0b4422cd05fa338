// Python's two ways of formatting: "%s" % value and "{}".format(value). Forms that few templates
// use (%c, '!a', commas between padding zeros, ...) are not supported.
//
// Thread safety: one thread at a time for each Heap.
// Errors:        an operation that raises in Python, or is not supported, fails the rendering.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_FORMAT_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_FORMAT_H_

#include "deploy/gateway/template/value.h"

namespace quire {

// Returns format % values. `values` is a tuple, a dict, or one value. REQUIRES: format is a string.
Value FormatPercent(Heap& heap, const Value& format, const Value& values);

// The method str.format. positional[0] is the format.
Value FormatMethod(Heap& heap, Arguments& arguments);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_FORMAT_H_
