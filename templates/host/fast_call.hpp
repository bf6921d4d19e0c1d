// FastCall: a kernel of fixed shapes.
#pragma once

#include "on_stream.hpp"

#include <structmember.h>

#include <cstddef>
#include <map>
#include <memory>

namespace {

struct Output {
  PyObject* maker;  // maker(*arguments) -> a new tensor
  PyObject* arguments;
};

struct Span {
  uintptr_t begin, end;
};

struct Call {
  DLDevice device;
  PyObject* failed;  // failed(status) raises
  std::vector<Expected> expected, results;
  std::vector<Output> outputs;
  std::vector<Span> fixed;  // memory of arguments that are always the same
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

// Whether a call may be made without Python, as far as it does not depend on its tensors; `grad`: whether grad mode is
// on.
bool ready(const Call* self, bool& grad) {
  for (const volatile int32_t* alarm : self->alarms)
    if (*alarm >= 0) return false;
  if (asked(host.recording) || asked(host.tracing)) return false;
  const int enabled = asked(host.grad_enabled);
  grad = enabled == 1;
  return enabled >= 0;
}

// The addresses of these tensors follow those before; false where one is another than expected.
bool accepted(const Call* self, PyObject* const* given, const std::vector<Expected>& expected, bool grad,
              std::vector<uintptr_t>& addresses) {
  for (size_t n = 0; n < expected.size(); ++n) {
    const uintptr_t address = accepted(self, given[n], expected[n], grad);
    if (!address) return false;
    addresses.push_back(address);
  }
  return true;
}

// Of torch's current stream, where this call knows it and no graph is captured; else nullptr.
OnStream* here(const Call* self) {
  if (self->device.device_type != kDLCPU) {
    PyObject* current = PyObject_CallNoArgs(host.current_device);
    const long index = current ? PyLong_AsLong(current) : -1;
    Py_XDECREF(current);
    if (index != self->device.device_id) return nullptr;
  }
  void* stream = nullptr;
  if (host.torch->current_work_stream(self->device.device_type, self->device.device_id, &stream)) return nullptr;
  const auto found = self->streams.find(stream);
  int captured = 0;
  if (found == self->streams.end() || host.capturing(stream, &captured) || captured) return nullptr;
  return found->second.get();
}

// Launch with these tensors; false and an error where the driver refuses.
bool launched(const Call* self, OnStream& there, const std::vector<uintptr_t>& addresses) {
  there.take();
  int status = 0;
  for (size_t n = 0; n < addresses.size() && !status; ++n) status = there.move(n, addresses[n]);
  if (status)
    there.guard.unlock();
  else
    status = there.start();
  if (!status) return true;
  PyObject* said = PyObject_CallFunction(self->failed, "i", status);
  if (said) {
    Py_DECREF(said);
    PyErr_Format(PyExc_SystemError, "CUDA driver: status %d", status);
  }
  return false;
}

// call(*arguments) -> new results
PyObject* call(PyObject* object, PyObject* const* given, size_t flags, PyObject* names) {
  const Call* self = reinterpret_cast<FastCall*>(object)->call;
  bool grad;
  std::vector<uintptr_t> addresses;
  addresses.reserve(self->expected.size() + self->outputs.size());
  if (names || static_cast<size_t>(PyVectorcall_NARGS(flags)) != self->expected.size() || !ready(self, grad) ||
      !accepted(self, given, self->expected, grad, addresses))
    return not_mine();
  OnStream* there = here(self);
  if (!there) return not_mine();
  PyObject* results = made(self, addresses);
  if (results && launched(self, *there, addresses)) return results;
  Py_XDECREF(results);
  return nullptr;
}

// Whether one of the outputs lies in another's memory, or in that of an argument or of what is fixed.
bool shared(const Call* self, const std::vector<uintptr_t>& addresses) {
  std::vector<Span> before = self->fixed;
  for (size_t n = 0; n < addresses.size(); ++n) {
    const bool written = n >= self->expected.size();
    const Expected& e = written ? self->results[n - self->expected.size()] : self->expected[n];
    const Span span{addresses[n], addresses[n] + e.bytes()};
    for (const Span& other : before)
      if (written && span.begin < other.end && other.begin < span.end) return true;
    before.push_back(span);
  }
  return false;
}

// into(*arguments, *outputs): results go into tensors that are there
PyObject* into(PyObject* object, PyObject* const* given, Py_ssize_t count) {
  const Call* self = reinterpret_cast<FastCall*>(object)->call;
  const size_t inputs = self->expected.size();
  bool grad;
  std::vector<uintptr_t> addresses;
  if (static_cast<size_t>(count) != inputs + self->results.size() || !ready(self, grad) ||
      !accepted(self, given, self->expected, grad, addresses) ||
      !accepted(self, given + inputs, self->results, grad, addresses) || shared(self, addresses))
    return not_mine();
  OnStream* there = here(self);
  if (!there) return not_mine();
  if (!launched(self, *there, addresses)) return nullptr;
  Py_RETURN_NONE;
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

bool read_spans(PyObject* listed, std::vector<Span>& into) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(listed); ++n) {
    unsigned long long begin, end;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(listed, n), "KK", &begin, &end)) return false;
    into.push_back({static_cast<uintptr_t>(begin), static_cast<uintptr_t>(end)});
  }
  return true;
}

bool read_alarms(PyObject* listed, std::vector<const volatile int32_t*>& into) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(listed); ++n)
    into.push_back(static_cast<const volatile int32_t*>(PyLong_AsVoidPtr(PyTuple_GET_ITEM(listed, n))));
  return !PyErr_Occurred();
}

// FastCall((device type, index), arguments: ((code, bits, shape), …), results: the same, ((maker, arguments), …),
//          fixed: ((begin, end), …), alarms: (address, …), failed)
PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  int device_type, device_id;
  PyObject *expected, *results, *outputs, *fixed, *alarms, *failed;
  if (named || !PyArg_ParseTuple(arguments, "(ii)O!O!O!O!O!O", &device_type, &device_id, &PyTuple_Type, &expected,
                                 &PyTuple_Type, &results, &PyTuple_Type, &outputs, &PyTuple_Type, &fixed,
                                 &PyTuple_Type, &alarms, &failed))
    return nullptr;
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  auto made = std::make_unique<Call>(DLDevice{static_cast<DLDeviceType>(device_type), device_id}, failed);
  FastCall* self = reinterpret_cast<FastCall*>(object);
  self->vectorcall = call;
  if (read_expected(expected, made->expected) && read_expected(results, made->results) &&
      read_outputs(outputs, made->outputs) && read_spans(fixed, made->fixed) && read_alarms(alarms, made->alarms)) {
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
    unsigned long long config, function, parameters, node, of_node;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(listed, n), "KKKKK", &config, &function, &parameters, &node, &of_node))
      return false;
    into.push_back({reinterpret_cast<void*>(config), reinterpret_cast<void*>(function),
                    reinterpret_cast<void**>(parameters), reinterpret_cast<void*>(node),
                    reinterpret_cast<void*>(of_node)});
  }
  return true;
}

bool read_places(PyObject* listed, size_t launches, std::vector<Place>& into) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(listed); ++n) {
    unsigned long long launch, at;
    long long offset;
    int in_map;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(listed, n), "KKLp", &launch, &at, &offset, &in_map)) return false;
    if (launch >= launches) {
      PyErr_Format(PyExc_ValueError, "a place in launch %llu of %zu", launch, launches);
      return false;
    }
    into.push_back({static_cast<size_t>(launch), static_cast<uintptr_t>(at), offset, in_map != 0});
  }
  return true;
}

// add(stream, ((config, function, parameters, node, its parameters), …),
//     (((launch, address, offset, in a map), …), …), graph or 0, keeps)
PyObject* add(PyObject* object, PyObject* arguments) {
  Call* self = reinterpret_cast<FastCall*>(object)->call;
  unsigned long long stream, graph;
  PyObject *launches, *places, *keeps;
  if (!PyArg_ParseTuple(arguments, "KO!O!KO", &stream, &PyTuple_Type, &launches, &PyTuple_Type, &places, &graph,
                        &keeps))
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
    if (!PyTuple_Check(of) || !read_places(of, made->launches.size(), made->places.back())) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "places of a tensor are a tuple");
      return nullptr;
    }
  }
  made->addresses.assign(tensors, 0);
  made->graph = reinterpret_cast<void*>(graph);
  made->stream = reinterpret_cast<void*>(stream);
  Py_INCREF(keeps);
  made->keeps = keeps;
  self->streams.emplace(reinterpret_cast<void*>(stream), std::move(made));  // one that is there stays
  Py_RETURN_NONE;
}

const PyCFunction into_method = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(into));
PyMethodDef fast_call_methods[] = {
    {"add", add, METH_VARARGS, "The launches of a call on one stream."},
    {"into", into_method, METH_FASTCALL, "Results go into tensors that are there."},
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

}  // namespace
