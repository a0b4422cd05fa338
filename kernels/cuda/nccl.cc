#include "kernels/cuda/nccl.h"

#include <dlfcn.h>

namespace quire::gpu {
namespace {

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool FindAll(void* library, NcclFunctions* f) {
  return Find(library, "ncclGetUniqueId", &f->get_unique_id) &&
         Find(library, "ncclCommInitRankConfig", &f->comm_init) &&
         Find(library, "ncclCommGetAsyncError", &f->get_async_error) &&
         Find(library, "ncclCommAbort", &f->comm_abort) &&
         Find(library, "ncclAllReduce", &f->all_reduce) &&
         Find(library, "ncclSend", &f->send) &&  //
         Find(library, "ncclRecv", &f->receive) &&
         Find(library, "ncclGroupStart", &f->group_start) &&
         Find(library, "ncclGroupEnd", &f->group_end);
}

void* OpenLibrary(const char* path) {
  if (path != nullptr) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  for (const char* candidate : {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"}) {
    if (void* library = dlopen(candidate, RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
  }
  return nullptr;
}

}  // namespace

std::optional<NcclFunctions> OpenNcclLibrary(const char* path) {
  void* library = OpenLibrary(path);
  NcclFunctions functions = {};
  if (library == nullptr || !FindAll(library, &functions)) {
    return std::nullopt;
  }
  return functions;
}

}  // namespace quire::gpu
