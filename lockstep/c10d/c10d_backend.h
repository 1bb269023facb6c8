#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Returns c10d's interface to the ranks of `group`, for c10d's own classes and
/// for Python. Its calls and those of `group` run in the order in which they
/// are made. Null in a group of one rank.
c10::intrusive_ptr<c10d::Backend> c10d_backend(const ProcessGroup& group);

/// Same, for ranks that `transport` connects. It ends with the result.
c10::intrusive_ptr<c10d::Backend> c10d_backend(
    const std::shared_ptr<Transport>& transport);

}  // namespace lockstep
