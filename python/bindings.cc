// The Python module lockstep._c10d_X_Y, for torch X.Y: Lockstep's ranks as a
// backend of torch.distributed.
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <pybind11/chrono.h>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include "lockstep/base/env.h"
#include "lockstep/comm/host_backend.h"
#include "lockstep/comm/process_group_impl.h"
#include "lockstep/store/socket_address.h"

namespace lockstep {
namespace {

namespace py = pybind11;

/// Releases the GIL for a wait for threads, which may be in callbacks that wait
/// for it.
void end_without_gil(const std::function<void()>& end) {
  std::optional<py::gil_scoped_release> no_gil;
  if (Py_IsInitialized() && PyGILState_Check()) no_gil.emplace();
  end();
}

/// Returns the host of the store, towards which ranks on several hosts find
/// their own address.
std::string host_of(c10d::Store& store) {
  if (const auto tcp = tcp_store_of(store)) return tcp->getHost();
  return env("MASTER_ADDR").value_or(store::loopback_host());
}

/// Returns the part of `store` for this group. A program that destroys its
/// group and makes it again gets the same store, with the old addresses of the
/// ranks. So each rank counts its groups there, and the ranks of one count
/// meet.
c10::intrusive_ptr<c10d::Store> store_of_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  const int64_t number = store->add(fmt::format("groups of rank {}", rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("group {}", number),
                                                store);
}

/// Connects the ranks that meet in `store`, which no other group uses. Titles
/// for a profiler begin with `name`. Called without the GIL.
c10::intrusive_ptr<c10d::Backend> make_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout, std::string name) {
  c10::intrusive_ptr<HostBackend> backend;
  if (size == 1) {
    backend = ProcessGroup::Impl().direct;
    backend->setTimeout(timeout);
  } else {
    backend = ProcessGroup::Impl(store_of_group(store, rank), rank, size,
                                 host_of(*store),
                                 ProcessGroupOptions().timeout(timeout))
                  .direct;
  }
  backend->set_name(name);
  backend->set_around_end(end_without_gil);
  backend->set_connect([name](const auto& store_of_part, int part_rank,
                              int part_size, std::chrono::milliseconds limit) {
    std::optional<py::gil_scoped_release> no_gil;
    if (PyGILState_Check()) no_gil.emplace();
    return make_backend(store_of_part, part_rank, part_size, limit, name);
  });
  return backend;
}

}  // namespace
}  // namespace lockstep

PYBIND11_MODULE(LOCKSTEP_MODULE, module) {
  module.doc() = "Lockstep's backend for torch.distributed.";
  module.def("make_backend", &lockstep::make_backend, pybind11::arg("store"),
             pybind11::arg("rank"), pybind11::arg("size"),
             pybind11::arg("timeout"), pybind11::arg("name") = "lockstep",
             pybind11::call_guard<pybind11::gil_scoped_release>());
}
