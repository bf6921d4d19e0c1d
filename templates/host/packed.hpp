// Packed: a module whose weights a kernel has packed.
#pragma once

#include "host.hpp"

#include <structmember.h>

#include <cstddef>

namespace {

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

PyMemberDef packed_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Packed, vectorcall), READONLY, nullptr},
                                {nullptr, 0, 0, 0, nullptr}};
PyType_Slot packed_slots[] = {{Py_tp_new, reinterpret_cast<void*>(create_packed)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(destroy_packed)},
                              {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                              {Py_tp_members, packed_members},
                              {0, nullptr}};
PyType_Spec packed_spec = {"tilegen_fast_call.Packed", sizeof(Packed), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, packed_slots};

}  // namespace
