// kernel(x, w1, w2) on a GPU, from the second call on: what Python would do, in a tenth of its time.
//
// A FastCall holds what the first call on a stream has found out: the parameters of its launches, and where in
// them each tensor's address stands. A call checks its tensors, makes its outputs, moves what lies elsewhere
// than before, and launches. Whatever is not as it expects (another shape, a tensor that requires grad, a graph
// that is captured, a launch that hung) it leaves to Python: it returns NotImplemented and has done nothing.
//
// Tensors are read by PyTorch's table of C functions (torch.Tensor.__dlpack_c_exchange_api__, DLPack 1.3). Of
// CUDA it knows five functions, whose addresses Python gives: so it is built without CUDA, and tested without.

#include "by_size.hpp"
#include "fast_call.hpp"
#include "host.hpp"
#include "packed.hpp"

namespace {

// setup(capsule, (Tensor, Parameter), (launch, replace, capturing, set node, launch graph), grad_enabled,
//       recording, tracing, device)
PyObject* setup(PyObject*, PyObject* arguments) {
  PyObject *capsule, *tensor, *parameter, *grad_enabled, *recording, *tracing, *current_device;
  unsigned long long launch, replace, capturing, set_node, launch_graph;
  if (!PyArg_ParseTuple(arguments, "O(OO)(KKKKK)OOOO", &capsule, &tensor, &parameter, &launch, &replace, &capturing,
                        &set_node, &launch_graph, &grad_enabled, &recording, &tracing, &current_device))
    return nullptr;
  const void* table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (!table) return nullptr;
  host.torch = static_cast<const DLPackExchangeAPI*>(table);
  if (host.torch->header.version.major != DLPACK_MAJOR_VERSION) {
    PyErr_Format(PyExc_ImportError, "torch speaks DLPack %u, this was built for %d", host.torch->header.version.major,
                 DLPACK_MAJOR_VERSION);
    return nullptr;
  }
  host.launch = reinterpret_cast<LaunchKernelEx>(launch);
  host.replace = reinterpret_cast<ReplaceAddress>(replace);
  host.capturing = reinterpret_cast<IsCapturing>(capturing);
  host.set_node = reinterpret_cast<SetNode>(set_node);
  host.launch_graph = reinterpret_cast<LaunchGraph>(launch_graph);
  PyObject** kept[] = {&host.tensor,  &host.parameter,      &host.grad_enabled, &host.recording,
                       &host.tracing, &host.current_device};
  PyObject* given[] = {tensor, parameter, grad_enabled, recording, tracing, current_device};
  for (size_t n = 0; n < 6; ++n) {
    Py_INCREF(given[n]);
    Py_XDECREF(*kept[n]);
    *kept[n] = given[n];
  }
  if (!host.requires_grad) host.requires_grad = PyUnicode_InternFromString("requires_grad");
  if (!host.is_neg) host.is_neg = PyUnicode_InternFromString("is_neg");
  if (!host.version) host.version = PyUnicode_InternFromString("_version");
  if (!host.requires_grad || !host.is_neg || !host.version) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef module_methods[] = {{"setup", setup, METH_VARARGS, "What the process has, once."},
                                {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "tilegen_fast_call", nullptr, -1, module_methods,
                      nullptr,               nullptr,             nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_tilegen_fast_call() {
  PyObject* made = PyModule_Create(&module);
  if (!made) return nullptr;
  fast_call_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&fast_call_spec));
  PyObject* by_size = PyType_FromSpec(&by_size_spec);
  PyObject* packed = PyType_FromSpec(&packed_spec);
  PyObject* fast_call = reinterpret_cast<PyObject*>(fast_call_type);
  if (fast_call && by_size && packed && !PyModule_AddObjectRef(made, "FastCall", fast_call) &&
      !PyModule_AddObjectRef(made, "BySize", by_size) && !PyModule_AddObjectRef(made, "Packed", packed))
    return made;
  Py_DECREF(made);
  return nullptr;
}
