// The launches of a call on one stream: parameters that are moved and read, one call at a time.
#pragma once

#include "host.hpp"

#include <mutex>

namespace {

struct Launch {
  void* config;     // a CUlaunchConfig of this stream
  void* function;
  void** parameters;
  void* node;             // of the graph, if there is one
  const void* of_node;    // its CUDA_KERNEL_NODE_PARAMS, which point to the parameters
  bool moved = false;     // since the graph was given them
};

// Where an address stands: in a tensor map, or as a word.
struct Place {
  size_t launch;
  uintptr_t at;
  int64_t offset;  // bytes from the tensor's address
  bool in_map;
};

// The launches of a call on one stream, and the addresses that stand in their parameters.
struct OnStream {
  std::vector<Launch> launches;
  std::vector<std::vector<Place>> places;  // of each argument, then of each output
  std::vector<uintptr_t> addresses;
  void* graph = nullptr;                   // a CUgraphExec of all launches: one call of the driver for many
  void* stream = nullptr;
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
      launches[place.launch].moved = true;
      if (!place.in_map) {
        *reinterpret_cast<uint64_t*>(place.at) = moved;
      } else if (int status = host.replace(reinterpret_cast<void*>(place.at), reinterpret_cast<void*>(moved))) {
        return status;
      }
    }
    addresses[n] = address;
    return 0;
  }

  int start_each() {
    for (const Launch& launch : launches)
      if (int status = host.launch(launch.config, launch.function, launch.parameters, nullptr)) return status;
    return 0;
  }

  // What earlier launches of the graph were given is theirs: only later ones see what is set here.
  int start_graph() {
    for (Launch& launch : launches) {
      if (!launch.moved) continue;
      if (int status = host.set_node(graph, launch.node, launch.of_node)) return status;
      launch.moved = false;
    }
    return host.launch_graph(graph, stream);
  }

  // The driver may wait for room in a full queue, and what it waits for may be a Python function: the
  // interpreter's lock is let go meanwhile, and the guard before that lock is taken again.
  int start() {
    int status = 0;
    Py_BEGIN_ALLOW_THREADS
    status = graph ? start_graph() : start_each();
    guard.unlock();
    Py_END_ALLOW_THREADS
    return status;
  }
};

}  // namespace
