// A driver without a GPU: memory is the host's, and each call is written to the file $TG_CALLS, a JSON object a
// line. A launch notes the bytes of its parameters, whose sizes stand in $TG_PARAMETERS ("256 40 24", launches apart
// by a semicolon); a map is its number. $TG_RECORD ("8 0 9 70": words and their values) is what a kernel writes into
// its record, whose address is the second word of its last parameter.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cuda.h"

namespace {

using Fields = std::vector<std::pair<const char*, std::string>>;

CUresult noted(const char* call, const Fields& fields, bool right = true) {
  static std::ofstream file(std::getenv("TG_CALLS"));
  file << "{\"call\": \"" << call << "\"";
  for (const auto& [name, value] : fields) file << ", \"" << name << "\": " << value;
  file << "}" << std::endl;
  return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

template <class T>
std::string number(T value) { return std::to_string(static_cast<long long>(value)); }

std::string text(const std::string& value) { return "\"" + value + "\""; }

std::string list(const std::vector<std::string>& values) {
  std::string out;
  for (const std::string& value : values) out += (out.empty() ? "" : ", ") + value;
  return "[" + out + "]";
}

template <class T>
std::string numbers(const T* values, unsigned count) {
  std::vector<std::string> out;
  for (unsigned n = 0; n < count; ++n) out.push_back(number(values[n]));
  return list(out);
}

CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

std::vector<std::size_t> sizes_of(unsigned launch) {
  std::istringstream all(std::getenv("TG_PARAMETERS"));
  std::string one;
  for (unsigned n = 0; n <= launch; ++n) std::getline(all, one, ';');
  std::istringstream words(one);
  std::vector<std::size_t> found;
  for (std::size_t size; words >> size;) found.push_back(size);
  return found;
}

std::string hex(const void* data, std::size_t bytes) {
  std::string out;
  for (std::size_t n = 0; n < bytes; ++n) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<const unsigned char*>(data)[n]);
    out += digits;
  }
  return text(out);
}

// A map that both modes encode: what they are given alike, besides `own`.
CUresult noted_map(CUtensorMap* map, Fields own, CUtensorMapDataType type, cuuint32_t rank, void* at,
                   const cuuint64_t* shape, const cuuint64_t* pitches, const cuuint32_t* strides,
                   CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                   CUtensorMapFloatOOBfill fill) {
  static cuuint64_t made = 0;
  map->opaque[0] = made++;
  const Fields alike = {{"at", number(address(at))},
                        {"data_type", number(type)},
                        {"shape", numbers(shape, rank)},
                        {"pitches", numbers(pitches, rank - 1)},
                        {"element_strides", numbers(strides, rank)},
                        {"interleave", number(interleave)},
                        {"swizzle", number(swizzle)},
                        {"l2_promotion", number(promotion)},
                        {"oob_fill", number(fill)}};
  own.insert(own.end(), alike.begin(), alike.end());
  return noted("map", own, address(map) % 64 == 0);
}

}  // namespace

extern "C" {
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* gpu, int) { return *gpu = 0, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return *context = nullptr, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) { return noted("synchronize", {}); }

CUresult cuGetErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR_INVALID_VALUE";
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(7);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char* name) {
  return noted("function", {{"name", text(name)}});
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int bytes) {
  return noted("shared", {{"bytes", number(bytes)}});
}

CUresult cuModuleLoad(CUmodule*, const char* path) {
  return noted("load", {{"path", text(path)}}, std::ifstream(path).good());
}

CUresult cuMemAlloc(CUdeviceptr* at, std::size_t bytes) {
  void* const made = std::malloc(bytes);
  std::memset(made, 0x77, bytes);
  *at = address(made);
  return noted("alloc", {{"at", number(*at)}, {"bytes", number(bytes)}});
}

CUresult cuMemHostAlloc(void** at, std::size_t bytes, unsigned) {
  *at = std::malloc(bytes);
  return noted("host", {{"at", number(address(*at))}, {"bytes", number(bytes)}});
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* at, void* host, unsigned) {
  *at = address(host);
  return CUDA_SUCCESS;
}

CUresult cuMemsetD32(CUdeviceptr at, unsigned value, std::size_t words) {
  for (std::size_t n = 0; n < words; ++n) reinterpret_cast<unsigned*>(at)[n] = value;
  return noted("set", {{"at", number(at)}, {"value", number(value)}, {"words", number(words)}});
}

CUresult cuMemcpyHtoD(CUdeviceptr at, const void* from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(at), from, bytes);
  const auto first = *static_cast<const unsigned char*>(from);
  return noted("fill", {{"at", number(at)}, {"bytes", number(bytes)}, {"first", number(first)}});
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* at,
                                const cuuint64_t* shape, const cuuint64_t* pitches, const cuuint32_t* box,
                                const cuuint32_t* strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  return noted_map(map, {{"box", numbers(box, rank)}}, type, rank, at, shape, pitches, strides, interleave, swizzle,
                   promotion, fill);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* at,
                                 const cuuint64_t* shape, const cuuint64_t* pitches, const int* lower,
                                 const int* upper, cuuint32_t channels, cuuint32_t pixels,
                                 const cuuint32_t* strides, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                 CUtensorMapFloatOOBfill fill) {
  return noted_map(map,
                   {{"lower", numbers(lower, rank - 2)},
                    {"upper", numbers(upper, rank - 2)},
                    {"channels", number(channels)},
                    {"pixels", number(pixels)}},
                   type, rank, at, shape, pitches, strides, interleave, swizzle, promotion, fill);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction, void** parameters, void**) {
  static unsigned launches = 0;
  int cooperative = 0, programmatic = 0;
  for (unsigned n = 0; n < c->numAttrs; ++n) {
    const CUlaunchAttribute& a = c->attrs[n];
    if (a.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = a.value.cooperative;
    if (a.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      programmatic = a.value.programmaticStreamSerializationAllowed;
  }
  const auto sizes = sizes_of(launches++);
  std::vector<std::string> given;
  for (std::size_t n = 0; n < sizes.size(); ++n) given.push_back(hex(parameters[n], sizes[n]));
  if (const char* told = std::getenv("TG_RECORD")) {
    int* record;
    std::memcpy(&record, static_cast<const char*>(parameters[sizes.size() - 1]) + 8, 8);
    std::istringstream words(told);
    for (int word, value; words >> word >> value;) record[word] = value;
  }
  return noted("launch", {{"grid", numbers(&c->gridDimX, 3)},
                          {"block", numbers(&c->blockDimX, 3)},
                          {"shared_bytes", number(c->sharedMemBytes)},
                          {"stream", number(address(c->hStream))},
                          {"cooperative", number(cooperative)},
                          {"programmatic", number(programmatic)},
                          {"parameters", list(given)}});
}
}
