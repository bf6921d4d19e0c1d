// BySize: a kernel whose size moves, one FastCall for each size that it was called with.
#pragma once

#include "fast_call.hpp"

namespace {

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

PyMemberDef by_size_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(BySize, vectorcall), READONLY, nullptr},
                                 {nullptr, 0, 0, 0, nullptr}};
PyType_Slot by_size_slots[] = {{Py_tp_new, reinterpret_cast<void*>(create_by_size)},
                               {Py_tp_dealloc, reinterpret_cast<void*>(destroy_by_size)},
                               {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                               {Py_tp_members, by_size_members},
                               {0, nullptr}};
PyType_Spec by_size_spec = {"tilegen_fast_call.BySize", sizeof(BySize), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, by_size_slots};

}  // namespace
