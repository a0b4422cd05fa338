// The windows of windows.h on a GPU. Driver functions are looked up on first use, so that
// quire_cuda.so can be loaded without a driver.
#include <algorithm>
#include <iterator>
#include <memory>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/windows.h"

namespace quire::gpu {
namespace {

// CUDA 12.0: selects the function versions that match the declared types.
constexpr unsigned kDriverVersion = 12000;

struct Driver {
  decltype(&cuMemGetAllocationGranularity) get_granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_addresses = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  cudaError_t error = cudaSuccess;

  Driver() {
    Find("cuMemGetAllocationGranularity", &get_granularity);
    Find("cuMemCreate", &create);
    Find("cuMemRelease", &release);
    Find("cuMemAddressReserve", &reserve);
    Find("cuMemAddressFree", &free_addresses);
    Find("cuMemMap", &map);
    Find("cuMemUnmap", &unmap);
    Find("cuMemSetAccess", &set_access);
  }

  template <typename Function>
  void Find([[maybe_unused]] const char* name, Function* function) {
#if CUDART_VERSION < 12050  // older toolkits cannot ask for a version of a function
    *function = nullptr;
    error = cudaErrorNotSupported;
#else
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    void* found = nullptr;
    const cudaError_t asked =
        cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &result);
    if (asked != cudaSuccess || found == nullptr) {
      cudaGetLastError();  // clears the error, which a later launch would report again
      error = asked != cudaSuccess ? asked : cudaErrorNotSupported;
    }
    *function = reinterpret_cast<Function>(found);
#endif
  }
};

const Driver& TheDriver() {
  static const Driver driver;
  return driver;
}

// The driver calls below return only errors that have the same values in CUresult and cudaError_t.
int ErrorOf(CUresult result) { return static_cast<int>(result); }

CUmemAllocationProp MemoryOf(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

class DeviceWindows {
 public:
  DeviceWindows(const WindowsShape& shape, int device)
      : driver_(TheDriver()), shape_(shape), device_(device) {}

  ~DeviceWindows() {
    Unmap(0, std::ssize(is_mapped_));
    if (num_in_pool_ > 0) {
      driver_.unmap(pool_, num_in_pool_ * shape_.block_bytes);
    }
    for (const CUmemGenericAllocationHandle block : blocks_) {
      driver_.release(block);
    }
    if (places_ != 0) {
      driver_.free_addresses(places_, PlacesBytes());
    }
    if (pool_ != 0) {
      driver_.free_addresses(pool_, PoolBytes());
    }
  }

  DeviceWindows(const DeviceWindows&) = delete;
  DeviceWindows& operator=(const DeviceWindows&) = delete;

  int device() const { return device_; }
  // NOLINTBEGIN(performance-no-int-to-ptr): the driver's addresses are numbers
  void* pool() const { return reinterpret_cast<void*>(pool_); }
  void* places() const { return reinterpret_cast<void*>(places_); }
  // NOLINTEND(performance-no-int-to-ptr)

  CUresult Fill() {
    CUresult result = driver_.reserve(&pool_, PoolBytes(), 0, 0, 0);
    if (result == CUDA_SUCCESS) {
      result = driver_.reserve(&places_, PlacesBytes(), 0, 0, 0);
    }
    if (result == CUDA_SUCCESS) {
      is_mapped_.resize(static_cast<size_t>(shape_.num_places));
    }
    const CUmemAllocationProp memory = MemoryOf(device_);
    while (result == CUDA_SUCCESS && num_in_pool_ < static_cast<size_t>(shape_.num_blocks)) {
      CUmemGenericAllocationHandle block = 0;
      result = driver_.create(&block, shape_.block_bytes, &memory, 0);
      if (result == CUDA_SUCCESS) {
        blocks_.push_back(block);
        result =
            driver_.map(pool_ + num_in_pool_ * shape_.block_bytes, shape_.block_bytes, 0, block, 0);
      }
      num_in_pool_ += result == CUDA_SUCCESS ? 1 : 0;
    }
    return result == CUDA_SUCCESS ? Open(pool_, PoolBytes()) : result;
  }

  CUresult Map(int64_t place, BlockId block, int64_t count) {
    CUresult result = Unmap(place, count);
    for (int64_t i = 0; i < count && result == CUDA_SUCCESS; ++i) {
      const CUmemGenericAllocationHandle memory = blocks_[static_cast<size_t>(block + i)];
      result = driver_.map(At(place + i), shape_.block_bytes, 0, memory, 0);
      is_mapped_[static_cast<size_t>(place + i)] = result == CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
      result = Open(At(place), static_cast<size_t>(count) * shape_.block_bytes);
    }
    if (result != CUDA_SUCCESS) {
      Unmap(place, count);
    }
    return result;
  }

  // Calls cuMemUnmap once for each run of mapped places, because cuMemUnmap fails on a range that
  // contains unmapped places.
  CUresult Unmap(int64_t place, int64_t count) {
    const auto begin = is_mapped_.begin() + place;
    const auto end = begin + count;
    CUresult result = CUDA_SUCCESS;
    for (auto first = std::find(begin, end, true); first != end;) {
      const auto last = std::find(first, end, false);
      const CUresult unmapped = driver_.unmap(
          At(first - is_mapped_.begin()), static_cast<size_t>(last - first) * shape_.block_bytes);
      if (unmapped == CUDA_SUCCESS) {
        std::fill(first, last, false);
      } else {
        result = unmapped;
      }
      first = std::find(last, end, true);
    }
    return result;
  }

 private:
  CUdeviceptr At(int64_t place) const {
    return places_ + static_cast<size_t>(place) * shape_.block_bytes;
  }
  size_t PoolBytes() const { return static_cast<size_t>(shape_.num_blocks) * shape_.block_bytes; }
  size_t PlacesBytes() const { return static_cast<size_t>(shape_.num_places) * shape_.block_bytes; }

  // Makes the addresses readable and writable. Read-only access would suffice for places, but has
  // been tried only once, by hand on an H200, whose driver accepted it.
  CUresult Open(CUdeviceptr at, size_t bytes) const {
    const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return driver_.set_access(at, bytes, &access, 1);
  }

  const Driver& driver_;
  const WindowsShape shape_;
  const int device_;
  CUdeviceptr pool_ = 0;
  CUdeviceptr places_ = 0;
  std::vector<CUmemGenericAllocationHandle> blocks_;
  size_t num_in_pool_ = 0;
  std::vector<bool> is_mapped_;  // one entry per place; empty until addresses are reserved
};

}  // namespace

int WindowPageBytes(size_t* bytes) {
  *bytes = 0;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    cudaGetLastError();
    return error;
  }
  const Driver& driver = TheDriver();
  if (driver.error != cudaSuccess) {
    return 0;
  }
  const CUmemAllocationProp memory = MemoryOf(device);
  if (driver.get_granularity(bytes, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) {
    *bytes = 0;
  }
  return 0;
}

int CreateWindows(const WindowsShape& shape, Windows* windows) {
  *windows = {};
  if (TheDriver().error != cudaSuccess) {
    return TheDriver().error;
  }
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    cudaGetLastError();
    return error;
  }
  auto made = std::make_unique<DeviceWindows>(shape, device);
  if (const CUresult result = made->Fill(); result != CUDA_SUCCESS) {
    return ErrorOf(result);
  }
  windows->pool = made->pool();
  windows->places = made->places();
  windows->handle = made.release();
  return 0;
}

int DestroyWindows(void* handle) {
  if (handle == nullptr) {
    return 0;
  }
  // Synchronizes the windows' device, which need not be the current one.
  const std::unique_ptr<DeviceWindows> windows(static_cast<DeviceWindows*>(handle));
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  error = error != cudaSuccess ? error : cudaSetDevice(windows->device());
  error = error != cudaSuccess ? error : cudaDeviceSynchronize();
  const cudaError_t restored = cudaSetDevice(current);
  return error != cudaSuccess ? error : restored;
}

int MapPlaces(void* handle, int64_t place, BlockId block, int64_t count) {
  return ErrorOf(static_cast<DeviceWindows*>(handle)->Map(place, block, count));
}

int UnmapPlaces(void* handle, int64_t place, int64_t count) {
  return ErrorOf(static_cast<DeviceWindows*>(handle)->Unmap(place, count));
}

}  // namespace quire::gpu
