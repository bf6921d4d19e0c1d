// What calls have in common: torch's table of C functions, what is asked of Python, and functions of the driver.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/dlpack.h>

#include <cstdint>
#include <vector>

namespace {

constexpr uintptr_t ALIGNMENT = 16;  // bytes: what vector and bulk copies need

using LaunchKernelEx = int (*)(const void* config, void* function, void** parameters, void** extra);
using ReplaceAddress = int (*)(void* map, void* address);
using IsCapturing = int (*)(void* stream, int* status);
using SetNode = int (*)(void* graph, void* node, const void* parameters);
using LaunchGraph = int (*)(void* graph, void* stream);

struct Host {
  const DLPackExchangeAPI* torch = nullptr;
  PyObject* tensor = nullptr;             // types that are taken: others may be wrappers
  PyObject* parameter = nullptr;
  PyObject* grad_enabled = nullptr;       // () -> bool
  PyObject* recording = nullptr;          // () -> whether torch records operations: modes, tracers
  PyObject* tracing = nullptr;
  PyObject* current_device = nullptr;     // () -> int
  PyObject* requires_grad = nullptr;      // names of attributes
  PyObject* is_neg = nullptr;
  PyObject* version = nullptr;
  LaunchKernelEx launch = nullptr;
  ReplaceAddress replace = nullptr;
  IsCapturing capturing = nullptr;
  SetNode set_node = nullptr;
  LaunchGraph launch_graph = nullptr;
} host;

// Whether a call without arguments gives a true value; -1 and an error where it fails.
int asked(PyObject* call) {
  PyObject* answer = PyObject_CallNoArgs(call);
  if (!answer) return -1;
  const int truth = PyObject_IsTrue(answer);
  Py_DECREF(answer);
  return truth;
}

// A call that Python shall make; nothing has been done.
PyObject* not_mine() {
  PyErr_Clear();
  Py_RETURN_NOTIMPLEMENTED;
}

// --- tensors ------------------------------------------------------------------------------------------------

struct Expected {
  uint8_t code, bits;
  std::vector<int64_t> shape;

  uintptr_t bytes() const {
    uintptr_t n = bits / 8;
    for (const int64_t extent : shape) n *= static_cast<uintptr_t>(extent);
    return n;
  }

  bool fits(const DLTensor& t, const DLDevice& device) const {
    if (t.device.device_type != device.device_type || t.device.device_id != device.device_id) return false;
    if (t.dtype.code != code || t.dtype.bits != bits || t.dtype.lanes != 1) return false;
    if (t.ndim != static_cast<int>(shape.size())) return false;
    int64_t stride = 1;
    for (int n = t.ndim - 1; n >= 0; --n) {
      if (t.shape[n] != shape[n]) return false;
      if (t.strides && shape[n] != 1 && t.strides[n] != stride) return false;  // not contiguous
      stride *= shape[n];
    }
    return true;
  }
};

uintptr_t address_of(const DLTensor& t) { return reinterpret_cast<uintptr_t>(t.data) + t.byte_offset; }

}  // namespace
