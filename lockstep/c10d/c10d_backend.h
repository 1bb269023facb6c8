#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Returns c10d's interface to the ranks of `group`, for c10d's own classes and
/// for Python. Its calls and those of `group` run in the order in which they
/// are made. Null in a group of one rank.
c10::intrusive_ptr<c10d::Backend> c10d_backend(const ProcessGroup& group);

/// Connects the ranks that meet in a store, which no other group uses.
using MakeBackend = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout)>;

/// Same, for ranks that `transport` connects. It ends with the result. The
/// backend supports splitting, from torch 2.15 on, if `make` is given.
c10::intrusive_ptr<c10d::Backend> c10d_backend(
    const std::shared_ptr<Transport>& transport, MakeBackend make = nullptr);

}  // namespace lockstep
