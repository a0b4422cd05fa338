#include <memory>

#include "kernels/cuda/emulator/emulator.h"

namespace quire::gpu::emulator {
namespace {

thread_local std::unique_ptr<Record> current_record;

}  // namespace

int BeginRecord() {
  if (current_record != nullptr) {
    return kErrorInvalidValue;
  }
  current_record = std::make_unique<Record>();
  return 0;
}

Record* EndRecord() { return current_record.release(); }

int RunRecord(const Record& record) {
  for (const auto& launch : record) {
    if (const int error = launch(); error != 0) {
      return error;
    }
  }
  return 0;
}

Record* CurrentRecord() { return current_record.get(); }

}  // namespace quire::gpu::emulator
