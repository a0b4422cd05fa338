#include <cstdio>
#include <cstring>

#include <cuda_runtime_api.h>

#include "kernels/cuda/device_group.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace {

// Returns `error`, and clears CUDA's last error, because the program can go on after `error`. A
// later launch, or a library that asks for the last error, would otherwise report it again.
int Reported(cudaError_t error) {
  if (error != cudaSuccess) {
    cudaGetLastError();
  }
  return error;
}

}  // namespace

int CountDevices(int32_t* count) { return Reported(cudaGetDeviceCount(count)); }

int SetDevice(int32_t device) { return Reported(cudaSetDevice(device)); }

// Makes `device` current during the query, because cudaMemGetInfo reports on the current device.
int QueryDevice(int32_t device, DeviceInfo* info) {
  int before = 0;
  cudaDeviceProp properties;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cudaError_t error = cudaGetDevice(&before);
  error = error != cudaSuccess ? error : cudaSetDevice(device);
  error = error != cudaSuccess ? error : cudaGetDeviceProperties(&properties, device);
  error = error != cudaSuccess ? error : cudaMemGetInfo(&free_bytes, &total_bytes);
  const cudaError_t restored = cudaSetDevice(before);
  error = error != cudaSuccess ? error : restored;
  if (error != cudaSuccess) {
    return Reported(error);
  }
  snprintf(info->name, sizeof(info->name), "%.*s", int{sizeof(info->name)} - 1, properties.name);
  static_assert(sizeof(info->uuid) == sizeof(properties.uuid));
  memcpy(info->uuid, &properties.uuid, sizeof(info->uuid));
  info->index = device;
  info->compute_capability = properties.major * 10 + properties.minor;
  info->num_multiprocessors = properties.multiProcessorCount;
  info->free_bytes = static_cast<int64_t>(free_bytes);
  info->total_bytes = static_cast<int64_t>(total_bytes);
  return 0;
}

int Allocate(void** pointer, size_t bytes) { return Reported(cudaMalloc(pointer, bytes)); }

int Free(void* pointer) { return cudaFree(pointer); }

int AllocatePinned(void** pointer, size_t bytes) {
  return Reported(cudaMallocHost(pointer, bytes));
}

int FreePinned(void* pointer) { return cudaFreeHost(pointer); }

int CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) {
  return cudaMemcpyAsync(
      device, host, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream));
}

int CopyToHost(void* host, const void* device, size_t bytes, Stream stream) {
  return cudaMemcpyAsync(
      host, device, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream));
}

int CopyMany(
    void* const* to, const void* const* from, const size_t* bytes, size_t count, Stream stream) {
  auto* on = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaErrorNotSupported;
#if CUDART_VERSION >= 13000
  cudaMemcpyAttributes attributes = {};
  // Reads the sources in stream order, because an earlier kernel on the stream may write them.
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first_of_attributes = 0;
  error = cudaMemcpyBatchAsync(to, from, bytes, count, &attributes, &first_of_attributes, 1, on);
#endif
  if (error != cudaErrorNotSupported && error != cudaErrorCallRequiresNewerDriver) {
    return error;
  }
  // The driver is too old for batches. Clears the error, and copies one by one.
  cudaGetLastError();
  error = cudaSuccess;
  for (size_t i = 0; i < count && error == cudaSuccess; ++i) {
    error = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, on);
  }
  return error;
}

int CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return cudaMemcpyAsync(
      to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream));
}

int CopyColumns(const ColumnsCopy& copy, Stream stream) {
  constexpr size_t kElement = sizeof(float);
  return cudaMemcpy2DAsync(copy.to,
                           static_cast<size_t>(copy.to_stride) * kElement,
                           copy.from,
                           static_cast<size_t>(copy.from_stride) * kElement,
                           static_cast<size_t>(copy.width) * kElement,
                           static_cast<size_t>(copy.num_rows),
                           cudaMemcpyDeviceToDevice,
                           static_cast<cudaStream_t>(stream));
}

int FillBytes(void* device, int byte, size_t bytes, Stream stream) {
  return cudaMemsetAsync(device, byte, bytes, static_cast<cudaStream_t>(stream));
}

int Synchronize(Stream stream) { return cudaStreamSynchronize(static_cast<cudaStream_t>(stream)); }

// Operations on the stream and on CUDA's legacy default stream do not wait for each other.
int CreateStream(Stream* stream) {
  return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking);
}

int DestroyStream(Stream stream) { return cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }

int CreateEvent(Event* event) {
  return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming);
}

int CreateTimedEvent(Event* event) {
  return cudaEventCreate(reinterpret_cast<cudaEvent_t*>(event));
}

int DestroyEvent(Event event) { return cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

int RecordEvent(Event event, Stream stream) {
  return cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream));
}

int WaitForEvent(Event event, Stream stream) {
  return cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0);
}

int QueryEvent(Event event, bool* has_happened) {
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event));
  *has_happened = state == cudaSuccess;
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // clears "not ready", which a later launch would report as its error
    return 0;
  }
  return state;
}

int SynchronizeEvent(Event event) { return cudaEventSynchronize(static_cast<cudaEvent_t>(event)); }

int ElapsedMilliseconds(Event begin, Event end, float* milliseconds) {
  return cudaEventElapsedTime(
      milliseconds, static_cast<cudaEvent_t>(begin), static_cast<cudaEvent_t>(end));
}

int BeginGraph(Stream stream) {
  return cudaStreamBeginCapture(static_cast<cudaStream_t>(stream),
                                cudaStreamCaptureModeThreadLocal);
}

// Uploads the graph now. Otherwise its first launch would allocate the graph's memory, and could
// fail.
int EndGraph(Stream stream, Graph* graph) {
  static_assert(kOutOfMemory == static_cast<int>(cudaErrorMemoryAllocation));
  auto* on = static_cast<cudaStream_t>(stream);
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t made = nullptr;
  cudaError_t error = cudaStreamEndCapture(on, &captured);
  if (error == cudaSuccess) {
    error = cudaGraphInstantiate(&made, captured, 0);
    cudaGraphDestroy(captured);
  }
  if (error == cudaSuccess) {
    error = cudaGraphUpload(made, on);
    if (error != cudaSuccess) {
      cudaGraphExecDestroy(made);
    }
  }
  *graph = made;
  return Reported(error);
}

int LaunchGraph(Graph graph, Stream stream) {
  return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream));
}

int DestroyGraph(Graph graph) { return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

int IsRecording(Stream stream, bool* is_recording) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  *is_recording = status != cudaStreamCaptureStatusNone;
  return error;
}

const char* ErrorText(int error) {
  if (error == kUnsupported) {
    return "no kernel for this type or head_dim";
  }
  if (error == kNoGemmLibrary) {
    return "libcublasLt was not found; install it or name its folder in LD_LIBRARY_PATH";
  }
  if (error == kNoNccl) {
    return "libnccl was not found; install it or name its folder in LD_LIBRARY_PATH";
  }
  if (error <= kNcclError) {
    return "NCCL failed (ncclResult_t is -2000 minus this error); NCCL_DEBUG=WARN logs more";
  }
  if (error <= kGemmError) {
    return "a matrix product failed in cuBLASLt";
  }
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

}  // namespace quire::gpu
