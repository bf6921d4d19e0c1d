// A driver without a GPU: memory is the host's, and each call is written to the file $TG_CALLS, a JSON object a line. A launch notes the bytes of its
// parameters, whose sizes stand in $TG_PARAMETERS ("256 40 24", launches apart by a semicolon), and a map is eight bytes of its number. $TG_RECORD
// ("8 0 9 70": words and their values) is what a kernel writes into its record, whose address is the second word of its last parameter.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cuda.h"

namespace {

std::ofstream& calls() {
  static std::ofstream file(std::getenv("TG_CALLS"));
  return file;
}

template <class T>
std::string list(const T* values, unsigned count) {
  std::ostringstream out;
  for (unsigned n = 0; n < count; ++n) out << (n ? ", " : "") << values[n];
  return "[" + out.str() + "]";
}

std::vector<std::size_t> sizes_of(unsigned launch) {
  std::istringstream all(std::getenv("TG_PARAMETERS"));
  std::string one;
  for (unsigned n = 0; n <= launch; ++n) std::getline(all, one, ';');
  std::istringstream words(one);
  std::vector<std::size_t> found;
  for (std::size_t size; words >> size;) found.push_back(size);
  return found;
}

}  // namespace

extern "C" {
CUresult cuGetErrorName(CUresult, const char** name) { return *name = "CUDA_ERROR_INVALID_VALUE", CUDA_SUCCESS; }
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* gpu, int) { return *gpu = 0, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return *context = nullptr, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuStreamCreate(CUstream* stream, unsigned) { return *stream = reinterpret_cast<CUstream>(7), CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) { return calls() << "{\"call\": \"synchronize\"}\n", CUDA_SUCCESS; }

CUresult cuModuleLoad(CUmodule*, const char* path) {
  calls() << "{\"call\": \"load\", \"path\": \"" << path << "\"}\n";
  return std::ifstream(path).good() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char* name) {
  return calls() << "{\"call\": \"function\", \"name\": \"" << name << "\"}\n", CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int bytes) {
  return calls() << "{\"call\": \"shared\", \"bytes\": " << bytes << "}\n", CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* at, std::size_t bytes) {
  *at = reinterpret_cast<CUdeviceptr>(std::malloc(bytes));
  std::memset(reinterpret_cast<void*>(*at), 0x77, bytes);
  return calls() << "{\"call\": \"alloc\", \"at\": " << *at << ", \"bytes\": " << bytes << "}\n", CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** at, std::size_t bytes, unsigned) {
  *at = std::malloc(bytes);
  return calls() << "{\"call\": \"host\", \"at\": " << reinterpret_cast<CUdeviceptr>(*at) << ", \"bytes\": " << bytes << "}\n", CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* at, void* host, unsigned) { return *at = reinterpret_cast<CUdeviceptr>(host), CUDA_SUCCESS; }

CUresult cuMemsetD32(CUdeviceptr at, unsigned value, std::size_t words) {
  calls() << "{\"call\": \"set\", \"at\": " << at << ", \"value\": " << value << ", \"words\": " << words << "}\n";
  for (std::size_t n = 0; n < words; ++n) reinterpret_cast<unsigned*>(at)[n] = value;
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr at, const void* from, std::size_t bytes) {
  calls() << "{\"call\": \"fill\", \"at\": " << at << ", \"bytes\": " << bytes << ", \"first\": " << int(*static_cast<const unsigned char*>(from)) << "}\n";
  return std::memcpy(reinterpret_cast<void*>(at), from, bytes), CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
  return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* at, const cuuint64_t* shape,
                                const cuuint64_t* pitches, const cuuint32_t* box, const cuuint32_t* strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  static cuuint64_t made = 0;
  map->opaque[0] = made++;
  calls() << "{\"call\": \"map\", \"data_type\": " << type << ", \"at\": " << reinterpret_cast<CUdeviceptr>(at) << ", \"shape\": " << list(shape, rank)
          << ", \"pitches\": " << list(pitches, rank - 1) << ", \"box\": " << list(box, rank) << ", \"element_strides\": " << list(strides, rank)
          << ", \"interleave\": " << interleave << ", \"swizzle\": " << swizzle << ", \"l2_promotion\": " << promotion << ", \"oob_fill\": " << fill << "}\n";
  return reinterpret_cast<CUdeviceptr>(map) % 64 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction, void** parameters, void**) {
  static unsigned launches = 0;
  bool cooperative = false, programmatic = false;
  for (unsigned n = 0; n < c->numAttrs; ++n) {
    if (c->attrs[n].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = c->attrs[n].value.cooperative;
    if (c->attrs[n].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) programmatic = c->attrs[n].value.programmaticStreamSerializationAllowed;
  }
  calls() << "{\"call\": \"launch\", \"grid\": " << list(&c->gridDimX, 3) << ", \"block\": " << list(&c->blockDimX, 3) << ", \"shared_bytes\": "
          << c->sharedMemBytes << ", \"stream\": " << reinterpret_cast<CUdeviceptr>(c->hStream) << ", \"cooperative\": " << cooperative
          << ", \"programmatic\": " << programmatic << ", \"parameters\": [";
  const auto sizes = sizes_of(launches++);
  for (std::size_t n = 0; n < sizes.size(); ++n) {
    calls() << (n ? ", \"" : "\"");
    for (std::size_t b = 0; b < sizes[n]; ++b) {
      char text[3];
      std::snprintf(text, sizeof(text), "%02x", static_cast<const unsigned char*>(parameters[n])[b]);
      calls() << text;
    }
    calls() << "\"";
  }
  if (const char* told = std::getenv("TG_RECORD")) {
    int* record;
    std::memcpy(&record, static_cast<const char*>(parameters[sizes.size() - 1]) + 8, 8);
    std::istringstream words(told);
    for (int word, value; words >> word >> value;) record[word] = value;
  }
  return calls() << "]}" << std::endl, CUDA_SUCCESS;
}
}
