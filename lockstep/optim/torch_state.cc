#include "lockstep/optim/torch_state.h"

#include <algorithm>
#include <memory>
#include <typeinfo>

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/blocks.h"

namespace lockstep::optim {

using torch::Tensor;

namespace {

namespace to = torch::optim;

/// A type of optimizer, and how to reach its state.
struct StateType {
  const std::type_info* optimizer;
  std::vector<std::string> names;
  /// Type of "step.<i>".
  at::ScalarType step_type;
  std::unique_ptr<to::OptimizerParamState> (*make)();
  ParamState (*view)(to::OptimizerParamState& state);
  /// Returns how many of `names` a group with these options needs.
  size_t (*count_needed)(const to::OptimizerOptions& options);
};

template <class State>
std::unique_ptr<to::OptimizerParamState> make_empty() {
  return std::make_unique<State>();
}

ParamState view_of_sgd(to::OptimizerParamState& state) {
  auto& sgd = static_cast<to::SGDParamState&>(state);
  return {.tensors = {&sgd.momentum_buffer()}};
}

size_t count_of_sgd(const to::OptimizerOptions& options) {
  return static_cast<const to::SGDOptions&>(options).momentum() != 0 ? 1 : 0;
}

/// Adam and AdamW have states and options with the same members.
template <class State>
ParamState view_of_adam(to::OptimizerParamState& state) {
  auto& adam = static_cast<State&>(state);
  return {
      .tensors = {&adam.exp_avg(), &adam.exp_avg_sq(), &adam.max_exp_avg_sq()},
      .step = &adam.step()};
}

template <class Options>
size_t count_of_adam(const to::OptimizerOptions& options) {
  return static_cast<const Options&>(options).amsgrad() ? 3 : 2;
}

ParamState view_of_rmsprop(to::OptimizerParamState& state) {
  auto& rmsprop = static_cast<to::RMSpropParamState&>(state);
  return {.tensors = {&rmsprop.square_avg(), &rmsprop.momentum_buffer(),
                      &rmsprop.grad_avg()},
          .step = &rmsprop.step()};
}

ParamState view_of_adagrad(to::OptimizerParamState& state) {
  auto& adagrad = static_cast<to::AdagradParamState&>(state);
  return {.tensors = {&adagrad.sum()}, .step = &adagrad.step()};
}

template <class Optimizer, class State, class Options>
StateType adam_type() {
  return {.optimizer = &typeid(Optimizer),
          .names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
          .step_type = torch::kFloat,
          .make = make_empty<State>,
          .view = view_of_adam<State>,
          .count_needed = count_of_adam<Options>};
}

const std::array<StateType, 5>& state_types() {
  static const std::array<StateType, 5> types{
      StateType{.optimizer = &typeid(to::SGD),
                .names = {"momentum_buffer"},
                .step_type = torch::kFloat,
                .make = make_empty<to::SGDParamState>,
                .view = view_of_sgd,
                .count_needed = count_of_sgd},
      adam_type<to::Adam, to::AdamParamState, to::AdamOptions>(),
      adam_type<to::AdamW, to::AdamWParamState, to::AdamWOptions>(),
      StateType{.optimizer = &typeid(to::RMSprop),
                .names = {"square_avg", "momentum_buffer", "grad_avg"},
                .step_type = torch::kLong,
                .make = make_empty<to::RMSpropParamState>,
                .view = view_of_rmsprop,
                .count_needed = [](const to::OptimizerOptions&) -> size_t {
                  return 3;
                }},
      StateType{.optimizer = &typeid(to::Adagrad),
                .names = {"sum"},
                .step_type = torch::kLong,
                .make = make_empty<to::AdagradParamState>,
                .view = view_of_adagrad,
                .count_needed = [](const to::OptimizerOptions&) -> size_t {
                  return 1;
                }}};
  return types;
}

const StateType& type_of(const to::Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  for (const StateType& each : state_types()) {
    if (*each.optimizer == type) return each;
  }
  throw InvalidArgument(
      "optim", {.code = ErrorCode::kBadOptimizer,
                .what = "the state of this optimizer can't be saved",
                .expected = "SGD, Adam, AdamW, RMSprop or Adagrad of "
                            "torch::optim, and not a class that derives from "
                            "them",
                .got = c10::demangle(type.name()),
                .fix = "use one of these"});
}

bool is_sgd(const StateType& type) {
  return *type.optimizer == typeid(to::SGD);
}

/// Returns the names of the tensors that the options need, or that exist.
std::vector<std::string> names_in_dict(const to::Optimizer& optimizer) {
  const StateType& type = type_of(optimizer);
  size_t count = state_names(optimizer).size();
  for (const auto& [parameter, state] : optimizer.state()) {
    const ParamState view = type.view(*state);
    for (size_t slot = count; slot < type.names.size(); ++slot) {
      if (view.tensors[slot]->defined()) count = slot + 1;
    }
  }
  return {type.names.begin(),
          type.names.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::string entry_name(const std::string& name, size_t p) {
  return fmt::format("{}.{}", name, p);
}

/// Returns entry `key` of `state`. Throws CheckpointError if it is missing or
/// has another shape or type.
const Tensor& checked_entry(const NamedState& state, const std::string& key,
                            at::IntArrayRef sizes, at::ScalarType type) {
  const auto found = state.find(key);
  if (found == state.end()) {
    throw CheckpointError(
        {.code = ErrorCode::kStateMismatch,
         .what = fmt::format("the optimizer state has no '{}'", key),
         .fix = "resume with the optimizer that wrote the checkpoint"});
  }
  const Tensor& saved = found->second;
  if (saved.sizes() != sizes || saved.scalar_type() != type) {
    throw CheckpointError(
        {.code = ErrorCode::kStateMismatch,
         .what =
             fmt::format("optimizer state '{}' has another shape or type", key),
         .expected =
             c10::str(caffe2::TypeMeta::fromScalarType(type), " ", sizes),
         .got = c10::str(saved.dtype(), " ", saved.sizes()),
         .fix = "resume with the model that wrote the checkpoint"});
  }
  return saved;
}

Tensor zeros_for(const Tensor& parameter) {
  return torch::zeros_like(parameter.detach());
}

}  // namespace

std::vector<Tensor> parameters_of(const to::Optimizer& optimizer) {
  std::vector<Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(),
                      group.params().end());
  }
  return parameters;
}

std::vector<std::string> state_names(const to::Optimizer& optimizer) {
  const StateType& type = type_of(optimizer);
  size_t count = 0;
  for (const auto& group : optimizer.param_groups()) {
    count = std::max(count, type.count_needed(group.options()));
  }
  return {type.names.begin(),
          type.names.begin() + static_cast<std::ptrdiff_t>(count)};
}

bool counts_steps(const to::Optimizer& optimizer) {
  return !is_sgd(type_of(optimizer));
}

int64_t state_bytes(const to::Optimizer& optimizer) {
  const std::vector<Tensor> parameters = parameters_of(optimizer);
  const auto names = static_cast<int64_t>(names_in_dict(optimizer).size());
  const auto steps =
      static_cast<int64_t>(counts_steps(optimizer) ? parameters.size() : 0);
  return names * bytes_of(parameters) +
         steps * static_cast<int64_t>(
                     c10::elementSize(type_of(optimizer).step_type));
}

std::optional<ParamState> find_state(const to::Optimizer& optimizer,
                                     const Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return std::nullopt;
  return type_of(optimizer).view(*found->second);
}

ParamState find_or_add_state(to::Optimizer& optimizer,
                             const Tensor& parameter) {
  const StateType& type = type_of(optimizer);
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!state) state = type.make();
  return type.view(*state);
}

NamedState state_dict(const to::Optimizer& optimizer, const ReadState& read) {
  const StateType& type = type_of(optimizer);
  const std::vector<std::string> names = names_in_dict(optimizer);
  const std::vector<Tensor> parameters = parameters_of(optimizer);
  Tensor has_buffer =
      torch::zeros({static_cast<int64_t>(parameters.size())}, torch::kByte);
  NamedState dict;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const std::optional<ParamState> state =
        find_state(optimizer, parameters[p]);
    for (size_t slot = 0; slot < names.size(); ++slot) {
      Tensor tensor;
      if (state) tensor = *state->tensors[slot];
      if (!tensor.defined() && read) tensor = read(slot, p);
      dict[entry_name(names[slot], p)] =
          tensor.defined() ? tensor : zeros_for(parameters[p]);
    }
    if (!is_sgd(type)) {
      dict[entry_name("step", p)] =
          torch::tensor(state ? *state->step : 0, torch::dtype(type.step_type));
    } else if (state) {
      has_buffer[static_cast<int64_t>(p)] = 1;
    }
  }
  if (is_sgd(type) && !names.empty()) dict[kHasMomentumBuffer] = has_buffer;
  return dict;
}

void load_state_dict(to::Optimizer& optimizer, const NamedState& state,
                     const StoreState& store) {
  const StateType& type = type_of(optimizer);
  const std::vector<std::string> names = names_in_dict(optimizer);
  if (names.empty()) return;
  const std::vector<Tensor> parameters = parameters_of(optimizer);
  // Nothing is changed unless all of it fits.
  std::vector<int64_t> steps(parameters.size(), 0);
  std::vector<bool> is_saved(parameters.size(), true);
  for (size_t p = 0; p < parameters.size(); ++p) {
    for (const std::string& name : names) {
      checked_entry(state, entry_name(name, p), parameters[p].sizes(),
                    parameters[p].scalar_type());
    }
    if (is_sgd(type)) continue;
    steps[p] = checked_entry(state, entry_name("step", p), {}, type.step_type)
                   .item<int64_t>();
    is_saved[p] = steps[p] != 0;
  }
  if (is_sgd(type) && state.contains(kHasMomentumBuffer)) {
    const Tensor& has_buffer =
        checked_entry(state, kHasMomentumBuffer,
                      {static_cast<int64_t>(parameters.size())}, torch::kByte);
    for (size_t p = 0; p < parameters.size(); ++p) {
      is_saved[p] = has_buffer[static_cast<int64_t>(p)].item<bool>();
    }
  }
  const torch::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!is_saved[p]) {
      // The parameter had no gradient so far.
      if (is_sgd(type)) {
        optimizer.state().erase(parameters[p].unsafeGetTensorImpl());
        continue;
      }
      if (!find_state(optimizer, parameters[p])) continue;
    }
    const ParamState known = find_or_add_state(optimizer, parameters[p]);
    for (size_t slot = 0; slot < names.size(); ++slot) {
      const Tensor& loaded = state.at(entry_name(names[slot], p));
      *known.tensors[slot] = store ? store(slot, p, loaded)
                                   : zeros_for(parameters[p]).copy_(loaded);
    }
    if (known.step != nullptr) *known.step = steps[p];
  }
}

}  // namespace lockstep::optim
