// kernel(x, w1, w2) on a GPU, from the second call on: what Python would do, in a tenth of its time.
//
// A FastCall holds what the first call on a stream has found out: the parameters of its launches, and where in
// them each tensor's address stands. A call checks its tensors, makes its outputs, moves what lies elsewhere
// than before, and launches. Whatever is not as it expects (another shape, a tensor that requires grad, a graph
// that is captured, a launch that hung) it leaves to Python: it returns NotImplemented and has done nothing.
//
// Tensors are read by PyTorch's table of C functions (torch.Tensor.__dlpack_c_exchange_api__, DLPack 1.3). Of
// CUDA it knows three functions, whose addresses Python gives: so it is built without CUDA, and tested without.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/dlpack.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace {

// --- what the process has -----------------------------------------------------------------------------------

constexpr uintptr_t ALIGNMENT = 16;  // bytes: what vector and bulk copies need

using LaunchKernelEx = int (*)(const void* config, void* function, void** parameters, void** extra);
using ReplaceAddress = int (*)(void* map, void* address);
using IsCapturing = int (*)(void* stream, int* status);

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
} host;

// Whether a call without arguments gives a true value; -1 and an error where it fails.
int asked(PyObject* call) {
  PyObject* answer = PyObject_CallNoArgs(call);
  if (!answer) return -1;
  const int truth = PyObject_IsTrue(answer);
  Py_DECREF(answer);
  return truth;
}

// --- tensors ------------------------------------------------------------------------------------------------

struct Expected {
  uint8_t code, bits;
  std::vector<int64_t> shape;

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

// --- launches -----------------------------------------------------------------------------------------------

struct Launch {
  void* config;     // a CUlaunchConfig of this stream
  void* function;
  void** parameters;
};

// Where an address stands: in a tensor map, or as a word.
struct Place {
  uintptr_t at;
  int64_t offset;  // bytes from the tensor's address
  bool in_map;
};

// The launches of a call on one stream, and the addresses that stand in their parameters.
struct OnStream {
  std::vector<Launch> launches;
  std::vector<std::vector<Place>> places;  // of each argument, then of each output
  std::vector<uintptr_t> addresses;
  PyObject* keeps = nullptr;               // what owns the memory behind the pointers
  std::mutex guard;                        // parameters are read until all launches are enqueued

  ~OnStream() { Py_XDECREF(keeps); }

  // Nobody holds the interpreter's lock while he waits for the guard: who has the guard may want that lock.
  void take() {
    if (guard.try_lock()) return;
    Py_BEGIN_ALLOW_THREADS
    guard.lock();
    Py_END_ALLOW_THREADS
  }

  // 0, or the driver's error.
  int move(size_t n, uintptr_t address) {
    if (addresses[n] == address) return 0;
    addresses[n] = 0;  // should one place be refused
    for (const Place& place : places[n]) {
      const uintptr_t moved = address + static_cast<uintptr_t>(place.offset);
      if (!place.in_map) {
        *reinterpret_cast<uint64_t*>(place.at) = moved;
      } else if (int status = host.replace(reinterpret_cast<void*>(place.at), reinterpret_cast<void*>(moved))) {
        return status;
      }
    }
    addresses[n] = address;
    return 0;
  }

  // The driver may wait for room in a full queue, and what it waits for may be a Python function: the
  // interpreter's lock is let go meanwhile, and the guard before that lock is taken again.
  int start() {
    int status = 0;
    Py_BEGIN_ALLOW_THREADS
    for (const Launch& launch : launches)
      if ((status = host.launch(launch.config, launch.function, launch.parameters, nullptr))) break;
    guard.unlock();
    Py_END_ALLOW_THREADS
    return status;
  }
};

// --- the call -----------------------------------------------------------------------------------------------

struct Output {
  PyObject* maker;  // maker(*arguments) -> a new tensor
  PyObject* arguments;
};

struct Call {
  DLDevice device;
  PyObject* failed;  // failed(status) raises
  std::vector<Expected> expected;
  std::vector<Output> outputs;
  std::vector<const volatile int32_t*> alarms;  // not negative: an earlier launch has something to say
  std::map<void*, std::unique_ptr<OnStream>> streams;

  Call(DLDevice device, PyObject* failed) : device(device), failed(failed) { Py_INCREF(failed); }
  ~Call() {
    for (const Output& output : outputs) {
      Py_DECREF(output.maker);
      Py_DECREF(output.arguments);
    }
    Py_DECREF(failed);
  }
};

struct FastCall {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Call* call;
};

PyTypeObject* fast_call_type = nullptr;

PyObject* not_mine() {
  PyErr_Clear();
  Py_RETURN_NOTIMPLEMENTED;
}

// The address of a tensor as the kernel wants it; 0 where it is another, with an error or without.
uintptr_t accepted(const Call* self, PyObject* a, const Expected& expected, bool grad) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(a));
  if (type != host.tensor && type != host.parameter) return 0;
  DLTensor t;
  if (host.torch->dltensor_from_py_object_no_sync(a, &t)) return 0;
  if (!t.data || !expected.fits(t, self->device) || address_of(t) % ALIGNMENT) return 0;
  if (grad) {
    PyObject* wanted = PyObject_GetAttr(a, host.requires_grad);
    if (!wanted) return 0;
    const bool refused = wanted != Py_False;
    Py_DECREF(wanted);
    if (refused) return 0;
  }
  PyObject* negated = PyObject_CallMethodNoArgs(a, host.is_neg);
  if (!negated) return 0;
  const bool plain = negated == Py_False;
  Py_DECREF(negated);
  return plain ? address_of(t) : 0;
}

// New tensors for the results: one alone, a tuple of several, None. Their addresses follow those before.
PyObject* made(const Call* self, std::vector<uintptr_t>& addresses) {
  const size_t count = self->outputs.size();
  PyObject* all = count == 1 ? nullptr : PyTuple_New(static_cast<Py_ssize_t>(count));
  if (count != 1 && !all) return nullptr;
  for (size_t n = 0; n < count; ++n) {
    const Output& output = self->outputs[n];
    PyObject* a = PyObject_Call(output.maker, output.arguments, nullptr);
    DLTensor t;
    if (!a || host.torch->dltensor_from_py_object_no_sync(a, &t)) {
      Py_XDECREF(a);
      Py_XDECREF(all);
      return nullptr;
    }
    addresses.push_back(address_of(t));
    if (!all) return a;
    PyTuple_SET_ITEM(all, static_cast<Py_ssize_t>(n), a);
  }
  if (count) return all;
  Py_DECREF(all);
  Py_RETURN_NONE;
}

PyObject* call(PyObject* object, PyObject* const* given, size_t flags, PyObject* names) {
  Call* self = reinterpret_cast<FastCall*>(object)->call;
  const size_t count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  if (names || count != self->expected.size()) return not_mine();
  for (const volatile int32_t* alarm : self->alarms)
    if (*alarm >= 0) return not_mine();
  if (asked(host.recording) || asked(host.tracing)) return not_mine();
  const int grad = asked(host.grad_enabled);
  if (grad < 0) return not_mine();

  std::vector<uintptr_t> addresses;
  addresses.reserve(count + self->outputs.size());
  for (size_t n = 0; n < count; ++n) {
    const uintptr_t address = accepted(self, given[n], self->expected[n], grad);
    if (!address) return not_mine();
    addresses.push_back(address);
  }

  if (self->device.device_type != kDLCPU) {
    PyObject* here = PyObject_CallNoArgs(host.current_device);
    const long index = here ? PyLong_AsLong(here) : -1;
    Py_XDECREF(here);
    if (index != self->device.device_id) return not_mine();
  }
  void* stream = nullptr;
  if (host.torch->current_work_stream(self->device.device_type, self->device.device_id, &stream)) return not_mine();
  const auto found = self->streams.find(stream);
  int captured = 0;
  if (found == self->streams.end() || host.capturing(stream, &captured) || captured) return not_mine();

  PyObject* results = made(self, addresses);
  if (!results) return nullptr;
  OnStream& there = *found->second;
  there.take();
  int status = 0;
  for (size_t n = 0; n < addresses.size() && !status; ++n) status = there.move(n, addresses[n]);
  if (status)
    there.guard.unlock();
  else
    status = there.start();
  if (!status) return results;
  Py_DECREF(results);
  PyObject* said = PyObject_CallFunction(self->failed, "i", status);
  if (said) {
    Py_DECREF(said);
    PyErr_Format(PyExc_SystemError, "CUDA driver: status %d", status);
  }
  return nullptr;
}

// --- made and told by Python --------------------------------------------------------------------------------

bool read_expected(PyObject* listed, std::vector<Expected>& into) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(listed); ++n) {
    int code, bits;
    PyObject* shape;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(listed, n), "iiO!", &code, &bits, &PyTuple_Type, &shape)) return false;
    Expected e{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), {}};
    for (Py_ssize_t d = 0; d < PyTuple_GET_SIZE(shape); ++d)
      e.shape.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(shape, d)));
    if (PyErr_Occurred()) return false;
    into.push_back(std::move(e));
  }
  return true;
}

bool read_outputs(PyObject* listed, std::vector<Output>& into) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(listed); ++n) {
    PyObject *maker, *arguments;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(listed, n), "OO!", &maker, &PyTuple_Type, &arguments)) return false;
    Py_INCREF(maker);
    Py_INCREF(arguments);
    into.push_back({maker, arguments});
  }
  return true;
}

bool read_alarms(PyObject* listed, std::vector<const volatile int32_t*>& into) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(listed); ++n)
    into.push_back(static_cast<const volatile int32_t*>(PyLong_AsVoidPtr(PyTuple_GET_ITEM(listed, n))));
  return !PyErr_Occurred();
}

// FastCall((device type, index), ((code, bits, shape), …), ((maker, arguments), …), (address, …), failed)
PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  int device_type, device_id;
  PyObject *expected, *outputs, *alarms, *failed;
  if (named || !PyArg_ParseTuple(arguments, "(ii)O!O!O!O", &device_type, &device_id, &PyTuple_Type, &expected,
                                 &PyTuple_Type, &outputs, &PyTuple_Type, &alarms, &failed))
    return nullptr;
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  auto made = std::make_unique<Call>(DLDevice{static_cast<DLDeviceType>(device_type), device_id}, failed);
  FastCall* self = reinterpret_cast<FastCall*>(object);
  self->vectorcall = call;
  if (read_expected(expected, made->expected) && read_outputs(outputs, made->outputs) &&
      read_alarms(alarms, made->alarms)) {
    self->call = made.release();
    return object;
  }
  Py_DECREF(object);
  return nullptr;
}

void destroy(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  delete reinterpret_cast<FastCall*>(object)->call;
  type->tp_free(object);
  Py_DECREF(type);  // as every object of a type made at run time does
}

bool read_launches(PyObject* listed, std::vector<Launch>& into) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(listed); ++n) {
    unsigned long long config, function, parameters;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(listed, n), "KKK", &config, &function, &parameters)) return false;
    into.push_back({reinterpret_cast<void*>(config), reinterpret_cast<void*>(function),
                    reinterpret_cast<void**>(parameters)});
  }
  return true;
}

bool read_places(PyObject* listed, std::vector<Place>& into) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(listed); ++n) {
    unsigned long long at;
    long long offset;
    int in_map;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(listed, n), "KLp", &at, &offset, &in_map)) return false;
    into.push_back({static_cast<uintptr_t>(at), offset, in_map != 0});
  }
  return true;
}

// add(stream, ((config, function, parameters), …), (((address, offset, in a map), …), …), keeps)
PyObject* add(PyObject* object, PyObject* arguments) {
  Call* self = reinterpret_cast<FastCall*>(object)->call;
  unsigned long long stream;
  PyObject *launches, *places, *keeps;
  if (!PyArg_ParseTuple(arguments, "KO!O!O", &stream, &PyTuple_Type, &launches, &PyTuple_Type, &places, &keeps))
    return nullptr;
  auto made = std::make_unique<OnStream>();
  const size_t tensors = self->expected.size() + self->outputs.size();
  if (static_cast<size_t>(PyTuple_GET_SIZE(places)) != tensors) {
    PyErr_Format(PyExc_ValueError, "places of %zd tensors, the call has %zu", PyTuple_GET_SIZE(places), tensors);
    return nullptr;
  }
  if (!read_launches(launches, made->launches)) return nullptr;
  for (size_t n = 0; n < tensors; ++n) {
    made->places.emplace_back();
    PyObject* of = PyTuple_GET_ITEM(places, static_cast<Py_ssize_t>(n));
    if (!PyTuple_Check(of) || !read_places(of, made->places.back())) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "places of a tensor are a tuple");
      return nullptr;
    }
  }
  made->addresses.assign(tensors, 0);
  Py_INCREF(keeps);
  made->keeps = keeps;
  self->streams.emplace(reinterpret_cast<void*>(stream), std::move(made));  // one that is there stays
  Py_RETURN_NONE;
}

// --- where a size moves -------------------------------------------------------------------------------------

// The FastCall of each extent that an argument was seen with.
struct BySize {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Py_ssize_t argument;
  int axis;
  PyObject* calls;  // extent -> FastCall
};

PyObject* call_by_size(PyObject* object, PyObject* const* given, size_t flags, PyObject* names) {
  BySize* self = reinterpret_cast<BySize*>(object);
  if (names || PyVectorcall_NARGS(flags) <= self->argument) return not_mine();
  PyObject* a = given[self->argument];
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(a));
  if (type != host.tensor && type != host.parameter) return not_mine();
  DLTensor t;
  if (host.torch->dltensor_from_py_object_no_sync(a, &t) || t.ndim <= self->axis) return not_mine();
  PyObject* extent = PyLong_FromLongLong(t.shape[self->axis]);
  if (!extent) return nullptr;
  PyObject* found = PyDict_GetItemWithError(self->calls, extent);
  Py_DECREF(extent);
  if (!found || Py_TYPE(found) != fast_call_type) return not_mine();
  Py_INCREF(found);  // another thread may take it out meanwhile
  PyObject* results = call(found, given, flags, nullptr);
  Py_DECREF(found);
  return results;
}

// BySize(argument, axis, {extent: FastCall})
PyObject* create_by_size(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  Py_ssize_t argument;
  int axis;
  PyObject* calls;
  if (named || !PyArg_ParseTuple(arguments, "niO!", &argument, &axis, &PyDict_Type, &calls)) return nullptr;
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  BySize* self = reinterpret_cast<BySize*>(object);
  self->vectorcall = call_by_size;
  self->argument = argument;
  self->axis = axis;
  Py_INCREF(calls);
  self->calls = calls;
  return object;
}

void destroy_by_size(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(reinterpret_cast<BySize*>(object)->calls);
  type->tp_free(object);
  Py_DECREF(type);
}

// --- where weights are packed -----------------------------------------------------------------------------------

// The call of a kernel that holds copies of these parameters: they are the same, and were not written since.
struct Packed {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* call;
  PyObject* parameters;  // a module's: name -> tensor
  PyObject* tensors;     // as they were packed
  PyObject* versions;
};

// Whether a parameter is still the tensor that was packed, and asks for no gradient now; -1 and an error.
int unchanged(PyObject* now, PyObject* packed, PyObject* version, bool grad) {
  if (now != packed) return 0;
  if (grad) {
    PyObject* wanted = PyObject_GetAttr(now, host.requires_grad);
    if (!wanted) return -1;
    Py_DECREF(wanted);
    if (wanted != Py_False) return 0;
  }
  PyObject* written = PyObject_GetAttr(now, host.version);
  if (!written) return -1;
  const int same = PyObject_RichCompareBool(written, version, Py_EQ);
  Py_DECREF(written);
  return same;
}

PyObject* call_packed(PyObject* object, PyObject* const* given, size_t flags, PyObject* names) {
  Packed* self = reinterpret_cast<Packed*>(object);
  const int grad = asked(host.grad_enabled);
  if (grad < 0 || PyDict_GET_SIZE(self->parameters) != PyTuple_GET_SIZE(self->tensors)) return not_mine();
  Py_ssize_t at = 0, n = 0;
  PyObject *name, *now;
  while (PyDict_Next(self->parameters, &at, &name, &now)) {
    if (unchanged(now, PyTuple_GET_ITEM(self->tensors, n), PyTuple_GET_ITEM(self->versions, n), grad) != 1)
      return not_mine();
    ++n;
  }
  return PyObject_Vectorcall(self->call, given, flags, names);
}

// Packed(call, {name: parameter}, (parameter, …), (version, …))
PyObject* create_packed(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  PyObject *call, *parameters, *tensors, *versions;
  if (named || !PyArg_ParseTuple(arguments, "OO!O!O!", &call, &PyDict_Type, &parameters, &PyTuple_Type, &tensors,
                                 &PyTuple_Type, &versions))
    return nullptr;
  if (PyTuple_GET_SIZE(tensors) != PyTuple_GET_SIZE(versions)) {
    PyErr_SetString(PyExc_ValueError, "each tensor has a version");
    return nullptr;
  }
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  Packed* self = reinterpret_cast<Packed*>(object);
  self->vectorcall = call_packed;
  PyObject** kept[] = {&self->call, &self->parameters, &self->tensors, &self->versions};
  PyObject* from[] = {call, parameters, tensors, versions};
  for (size_t n = 0; n < 4; ++n) {
    Py_INCREF(from[n]);
    *kept[n] = from[n];
  }
  return object;
}

void destroy_packed(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  Packed* self = reinterpret_cast<Packed*>(object);
  for (PyObject* held : {self->call, self->parameters, self->tensors, self->versions}) Py_XDECREF(held);
  type->tp_free(object);
  Py_DECREF(type);
}

// setup(capsule, (Tensor, Parameter), (launch, replace, capturing), grad_enabled, recording, tracing, device)
PyObject* setup(PyObject*, PyObject* arguments) {
  PyObject *capsule, *tensor, *parameter, *grad_enabled, *recording, *tracing, *current_device;
  unsigned long long launch, replace, capturing;
  if (!PyArg_ParseTuple(arguments, "O(OO)(KKK)OOOO", &capsule, &tensor, &parameter, &launch, &replace, &capturing,
                        &grad_enabled, &recording, &tracing, &current_device))
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

PyMethodDef fast_call_methods[] = {{"add", add, METH_VARARGS, "The launches of a call on one stream."},
                                   {nullptr, nullptr, 0, nullptr}};
PyMemberDef fast_call_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(FastCall, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyType_Slot fast_call_slots[] = {{Py_tp_new, reinterpret_cast<void*>(create)},
                                 {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
                                 {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                 {Py_tp_methods, fast_call_methods},
                                 {Py_tp_members, fast_call_members},
                                 {0, nullptr}};
PyType_Spec fast_call_spec = {"tilegen_fast_call.FastCall", sizeof(FastCall), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, fast_call_slots};

PyMemberDef by_size_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(BySize, vectorcall), READONLY, nullptr},
                                 {nullptr, 0, 0, 0, nullptr}};
PyType_Slot by_size_slots[] = {{Py_tp_new, reinterpret_cast<void*>(create_by_size)},
                               {Py_tp_dealloc, reinterpret_cast<void*>(destroy_by_size)},
                               {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                               {Py_tp_members, by_size_members},
                               {0, nullptr}};
PyType_Spec by_size_spec = {"tilegen_fast_call.BySize", sizeof(BySize), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, by_size_slots};

PyMemberDef packed_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Packed, vectorcall), READONLY, nullptr},
                                {nullptr, 0, 0, 0, nullptr}};
PyType_Slot packed_slots[] = {{Py_tp_new, reinterpret_cast<void*>(create_packed)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(destroy_packed)},
                              {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                              {Py_tp_members, packed_members},
                              {0, nullptr}};
PyType_Spec packed_spec = {"tilegen_fast_call.Packed", sizeof(Packed), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, packed_slots};

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
