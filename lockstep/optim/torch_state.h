#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

namespace lockstep::optim {

/// The state of an optimizer by name: "momentum_buffer.<i>", "exp_avg.<i>",
/// ..., "step.<i>", where i is the index of the parameter over all groups.
using NamedState = std::map<std::string, torch::Tensor>;

/// Name of the entry that says which parameters of an SGD have a momentum
/// buffer. With dampening, a first step differs from one that starts from
/// zeros.
inline constexpr const char* kHasMomentumBuffer = "has_momentum_buffer.0";

/// The state that an optimizer of torch::optim has for one parameter.
struct ParamState {
  /// In the order of state_names(). Null where the type has fewer tensors.
  std::array<torch::Tensor*, 3> tensors{};
  int64_t* step = nullptr;  ///< null for SGD, which counts no steps
};

/// Returns the parameters of all groups of `optimizer`, in order.
std::vector<torch::Tensor> parameters_of(
    const torch::optim::Optimizer& optimizer);

// The functions below know SGD, Adam, AdamW, RMSprop and Adagrad of
// torch::optim. A class that derives from one of them is another type. They
// throw InvalidArgument for other types.

/// Returns the names of the tensors that the optimizer keeps for a parameter
/// with the options of its groups.
std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer);
/// Returns whether the optimizer counts the steps of each parameter.
bool counts_steps(const torch::optim::Optimizer& optimizer);
/// Returns the bytes of the state of all parameters, even if it does not exist
/// yet.
int64_t state_bytes(const torch::optim::Optimizer& optimizer);

/// Returns the state of `parameter`, or nothing if it does not exist.
std::optional<ParamState> find_state(const torch::optim::Optimizer& optimizer,
                                     const torch::Tensor& parameter);
/// Same, but creates it, without tensors.
ParamState find_or_add_state(torch::optim::Optimizer& optimizer,
                             const torch::Tensor& parameter);

/// Returns the tensor `slot`, an index in state_names(), of parameter `p`.
using ReadState = std::function<torch::Tensor(size_t slot, size_t p)>;
/// Takes over a loaded tensor. Returns the one for the torch optimizer to keep.
using StoreState = std::function<torch::Tensor(size_t slot, size_t p,
                                               const torch::Tensor& loaded)>;

/// Returns the state by name. Tensors that don't exist, because the parameter
/// had no gradient so far, are zeros. So the names are the same at every step.
/// `read` replaces tensors that are kept elsewhere.
NamedState state_dict(const torch::optim::Optimizer& optimizer,
                      const ReadState& read = {});
/// Loads the output of state_dict(). Throws CheckpointError if an entry is
/// missing or has another shape or type, and changes nothing then. Without
/// kHasMomentumBuffer, every parameter has a buffer. By default, the optimizer
/// keeps copies.
void load_state_dict(torch::optim::Optimizer& optimizer,
                     const NamedState& state, const StoreState& store = {});

}  // namespace lockstep::optim
