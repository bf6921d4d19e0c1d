// As much of the CUDA driver's header as launcher.cpp uses, with the driver's own numbers: the tests need no
// toolkit.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef std::uint32_t cuuint32_t;
typedef std::uint64_t cuuint64_t;

enum { CU_STREAM_NON_BLOCKING = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2 };
typedef enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 } CUfunction_attribute;
typedef enum {
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
} CUtensorMapDataType;
typedef enum { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 } CUtensorMapInterleave;
typedef enum { CU_TENSOR_MAP_SWIZZLE_NONE = 0, CU_TENSOR_MAP_SWIZZLE_128B = 3 } CUtensorMapSwizzle;
typedef enum { CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2 } CUtensorMapL2promotion;
typedef enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 } CUtensorMapFloatOOBfill;
typedef struct alignas(64) { cuuint64_t opaque[16]; } CUtensorMap;

typedef enum {
  CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
} CUlaunchAttributeID;
typedef union {
  char pad[64];
  int cooperative;
  int programmaticStreamSerializationAllowed;
} CUlaunchAttributeValue;
typedef struct {
  CUlaunchAttributeID id;
  char pad[8 - sizeof(CUlaunchAttributeID)];
  CUlaunchAttributeValue value;
} CUlaunchAttribute;
typedef struct {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
} CUlaunchConfig;

#define cuMemAlloc cuMemAlloc_v2
#define cuMemcpyHtoD cuMemcpyHtoD_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#define cuMemsetD32 cuMemsetD32_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2

CUresult cuGetErrorName(CUresult, const char**);
CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice*, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuStreamCreate(CUstream*, unsigned);
CUresult cuStreamSynchronize(CUstream);
CUresult cuModuleLoad(CUmodule*, const char*);
CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char*);
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int);
CUresult cuMemAlloc(CUdeviceptr*, std::size_t);
CUresult cuMemHostAlloc(void**, std::size_t, unsigned);
CUresult cuMemHostGetDevicePointer(CUdeviceptr*, void*, unsigned);
CUresult cuMemsetD32(CUdeviceptr, unsigned, std::size_t);
CUresult cuMemcpyHtoD(CUdeviceptr, const void*, std::size_t);
CUresult cuMemcpyDtoH(void*, CUdeviceptr, std::size_t);
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
CUresult cuTensorMapEncodeIm2col(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const int*, const int*, cuuint32_t, cuuint32_t,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**);
}
