#include "lockstep/parallel/trial/module_comparison.h"

#include <algorithm>

#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/device/tensor_checksum.h"
#include "lockstep/device/torch_compat.h"
#include "lockstep/parallel/module/nested.h"

namespace lockstep {

using torch::Tensor;

namespace {

/// Takes .grad, hooks and the nodes that accumulate into .grad from parameters,
/// so that a backward through the module itself does not affect them. The
/// destructor restores them.
class Aside {
 public:
  explicit Aside(const std::vector<Tensor>& parameters) {
    for (const Tensor& parameter : parameters) {
      kept_.emplace_back().parameter = parameter;
    }
    swap_all();
  }
  ~Aside() { swap_all(); }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  struct Kept {
    Tensor parameter;
    Tensor gradient;
    std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> hooks;
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> post_hook;
    NodePtr accumulator;
  };

  void swap_all() {
    for (Kept& kept : kept_) {
      const Tensor& parameter = kept.parameter;
      std::swap(parameter.mutable_grad(), kept.gradient);
      if (!torch::autograd::impl::get_autograd_meta(parameter)) continue;
      torch::autograd::impl::hooks(parameter).swap(kept.hooks);
      torch::autograd::impl::post_acc_grad_hooks(parameter).swap(
          kept.post_hook);
      NodePtr accumulator =
          torch::autograd::impl::try_get_grad_accumulator(parameter);
      torch::autograd::impl::set_grad_accumulator(
          parameter, WeakNodePtr(kept.accumulator));
      kept.accumulator = std::move(accumulator);
    }
  }

  std::vector<Kept> kept_;
};

/// Returns whether two gradients differ only by rounding. A replica may add up
/// the parts of a gradient in another order than the module.
bool is_close(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes()) return false;
  const Tensor x = a.to(torch::kDouble), y = b.to(torch::kDouble);
  const double eps = c10::isReducedFloatingType(a.scalar_type()) ? 2e-2
                     : a.scalar_type() == torch::kDouble         ? 1e-12
                                                                 : 1e-5;
  const double scale = a.numel() == 0 ? 0 : x.abs().max().item<double>();
  return torch::allclose(x, y, eps, eps * scale, /*equal_nan=*/true);
}

/// Returns addresses that change if a forward registers a submodule, parameter
/// or buffer.
std::vector<const void*> registered_in(const ModuleHandle& module) {
  std::vector<const void*> registered = module.identity();
  if (!module.module) return registered;
  for (const auto& tensors :
       {module.module->parameters(), module.module->buffers()}) {
    for (const Tensor& tensor : tensors) {
      registered.push_back(tensor.unsafeGetTensorImpl());
    }
  }
  return registered;
}

/// Returns the reason why a module whose `changing` changes can't be checked.
std::string reason_of(const std::string& changing, const std::string& type) {
  return fmt::format(
      "{} of {} has other bits each time that it is computed, from the same "
      "weights, inputs and random numbers (it changes itself in forward(), or "
      "draws random numbers from somewhere else than LibTorch)",
      changing, type);
}

/// Returns whether an output or a parameter's gradient has a nonzero element.
bool has_nonzero(const TrialPass& pass) {
  const auto is_nonzero = [](const Tensor& tensor) {
    return tensor.defined() && tensor.numel() > 0 &&
           tensor.count_nonzero().item<int64_t>() > 0;
  };
  for (const TensorAtPath& output : tensors_in(pass.output)) {
    if (is_nonzero(output.tensor)) return true;
  }
  const auto& gradients = pass.gradients.parameters;
  for (size_t p = 0; p < gradients.size(); ++p) {
    if (is_nonzero(gradients[p].tensor())) return true;
    // A gradient that was freed to save memory counts as nonzero.
    if (!gradients[p].defined() && !pass.gradient_sums[p].empty()) return true;
  }
  return false;
}

/// Returns the tensors of `part`, detached from their graphs.
std::vector<Tensor> inputs_of(const c10::IValue& part) {
  std::vector<Tensor> inputs;
  for (const TensorAtPath& input : tensors_in(part)) {
    inputs.push_back(input.tensor.detach());
  }
  return inputs;
}

}  // namespace

ModuleComparison::ModuleComparison(const Trial& trial, size_t part,
                                   const KeptTensors& buffers, Extent extent)
    : trial_(trial),
      group_(trial.group),
      part_(part),
      inputs_(inputs_of(trial.batch.parts[part])),
      inputs_before_(inputs_),
      buffers_before_(buffers),
      extent_(extent) {}

ModuleComparison::Print ModuleComparison::print_of(
    const TrialPass& pass, const ModuleHandle::Named& buffers) {
  Print print{.outputs = {},
              .loss = checksum_of(pass.loss),
              .buffers = {},
              .gradients = pass.gradient_sums,
              .inputs = {}};
  for (const TensorAtPath& output : tensors_in(pass.output)) {
    print.outputs.emplace_back(output.path, checksum_of(output.tensor));
  }
  for (const auto& [name, buffer] : buffers) {
    print.buffers.push_back(checksum_of(buffer));
  }
  for (const Tensor& gradient : pass.gradients.inputs) {
    print.inputs.push_back(checksum_of(gradient));
  }
  return print;
}

void ModuleComparison::run_module() {
  start_ = RandomState::from_thread();
  const auto before = registered_in(group_.original());
  is_conclusive_ = has_nonzero(compute_with_module(expected_, extent_));
  registers_in_forward_ = registered_in(group_.original()) != before;
}

void ModuleComparison::run_forward_again() {
  if (registers_in_forward_) return;
  Print again;
  compute_with_module(again, Extent::kForward);
  for (size_t i = 0; i < again.outputs.size(); ++i) {
    if (i < expected_.outputs.size() &&
        again.outputs[i] == expected_.outputs[i]) {
      continue;
    }
    changing_output_ = "output" + again.outputs[i].first;
    return;
  }
}

Outcome ModuleComparison::outcome() const {
  if (changing_output_.empty()) return {.state = CheckState::kPassed};
  return {.state = CheckState::kImpossible,
          .reason = reason_of(changing_output_, group_.original().type)};
}

void ModuleComparison::run_module_on_others() const {
  if (registers_in_forward_) return;
  const torch::NoGradGuard no_grad;
  try {
    Print ignored;
    compute_with_module(ignored, Extent::kForwardOfOthers);
  } catch (const std::exception&) {
    // The module may demand samples that differ.
  }
}

TrialPass ModuleComparison::compute_with_module(Print& print,
                                                Extent extent) const {
  const ModuleHandle& original = group_.original();
  const auto members =
      original.members ? original.members() : ModuleHandle::Members();
  const Aside aside(group_.parameters());
  Replica module(original, original, group_.devices().front(), Storage::kShared,
                 Storage::kShared);
  const RandomScope same_numbers(start_);
  TrialPass pass;
  run_and_restore(
      [&] {
        pass = trial_.compute(module, part_, extent);
        print = print_of(pass, original.buffers);
      },
      [&] {
        inputs_before_.restore();
        buffers_before_.restore();
        if (original.members) original.set_members(members);
      });
  return pass;
}

ModuleComparison::Difference ModuleComparison::difference(
    const Print& a, const Print& b, const std::vector<bool>& skipped) const {
  if (a.outputs.size() != b.outputs.size()) {
    return {.name = "the number of outputs"};
  }
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    if (a.outputs[i] != b.outputs[i]) {
      return {.name = "output" + a.outputs[i].first};
    }
  }
  if (a.loss != b.loss) return {.name = "the loss"};
  const ModuleHandle& original = group_.original();
  for (size_t i = 0; i < a.buffers.size(); ++i) {
    if (a.buffers[i] == b.buffers[i]) continue;
    return {.name = fmt::format("buffer '{}'", original.buffers[i].first)};
  }
  for (size_t i = 0; i < original.parameters.size(); ++i) {
    const size_t p = group_.unique()[i];
    if (a.gradients[p] == b.gradients[p]) continue;
    if (p < skipped.size() && skipped[p]) continue;
    return {.name = fmt::format("the gradient of parameter '{}'",
                                original.parameters[i].first),
            .parameter = static_cast<int>(p)};
  }
  if (a.inputs != b.inputs) return {.name = "the gradient of an input"};
  return {};
}

std::vector<bool> ModuleComparison::are_split(const TrialPass& pass) const {
  std::vector<bool> split(group_.parameters().size(),
                          pass.gradients.has_several_parts);
  std::vector<bool> has_name(split.size());
  for (const size_t p : group_.unique()) {
    // A replica may have one leaf for each name.
    if (has_name[p]) split[p] = true;
    has_name[p] = true;
  }
  return split;
}

void ModuleComparison::compare(Replica& replica) {
  if (registers_in_forward_) {
    found_ = {.name = "what is registered"};
    return;
  }
  const RandomScope same_numbers(start_);
  TrialPass pass;
  run_and_restore(
      [&] {
        pass = trial_.compute(replica, part_, extent_);
        got_ = print_of(pass, replica.module().buffers);
      },
      [&] {
        inputs_before_.restore();
        buffers_before_.restore();
      });
  rounded_.clear();
  found_ = difference(expected_, got_, {});
  if (found_.parameter < 0) return;
  const std::vector<bool> is_split = are_split(pass);
  rounded_.resize(is_split.size());
  for (size_t p = 0; p < is_split.size(); ++p) {
    if (!is_split[p] || expected_.gradients[p] == got_.gradients[p]) continue;
    const Tensor& gradient = pass.gradients.parameters[p].tensor();
    if (gradient.defined()) rounded_[p] = gradient.clone();
  }
}

void ModuleComparison::explain(Findings& findings) {
  if (registers_in_forward_) {
    findings.problem = problem_of(found_);
    return;
  }
  // Restore the state from before the replica ran.
  const KeptTensors buffers_after = kept_buffers(group_.original());
  const KeptTensors inputs_after(inputs_);
  buffers_before_.restore();
  inputs_before_.restore();
  Print again;
  const TrialPass module_pass = compute_with_module(again, extent_);
  inputs_after.restore();
  buffers_after.restore();
  const Difference between_runs = difference(expected_, again, {});
  if (!between_runs.name.empty()) {
    findings.module = {
        .state = CheckState::kImpossible,
        .reason = reason_of(between_runs.name, group_.original().type)};
    return;
  }
  std::vector<bool> is_near(rounded_.size());
  for (size_t p = 0; p < rounded_.size(); ++p) {
    is_near[p] =
        is_close(module_pass.gradients.parameters[p].tensor(), rounded_[p]);
  }
  found_ = difference(expected_, got_, is_near);
  if (differs()) {
    findings.problem = problem_of(found_);
  } else {
    findings.module.state = CheckState::kPassed;
  }
}

Problem ModuleComparison::problem_of(const Difference& difference) const {
  const std::string& type = group_.original().type;
  Problem problem{
      .code = ErrorCode::kReplicaDiffers,
      .what = fmt::format("a replica of {} computes something else than the "
                          "module itself: {} differs. Nothing was updated",
                          type, difference.name),
      .expected = "replicas with the same bits"};
  if (registers_in_forward_) {
    problem.fix =
        "forward() registers a submodule, parameter or buffer: register it in "
        "the constructor and reset(), or call forward() once before you wrap "
        "the module and make the optimizer after that";
  } else if (difference.parameter >= 0 &&
             expected_.gradients[static_cast<size_t>(difference.parameter)]
                 .empty()) {
    problem.fix =
        "the module does not use this parameter, and its replica does: another "
        "tensor was assigned to the member (weights tied by assignment), which "
        "clone() does not copy. Use one parameter in both places, as in "
        "torch::nn::functional::linear(x, embedding->weight), or pass a "
        "factory that makes the same assignment";
  } else {
    problem.fix =
        "likely causes: weights tied by assignment (use one parameter in both "
        "places, as in torch::nn::functional::linear(x, embedding->weight), or "
        "pass a factory that ties them as well); a member that changed after "
        "the module was wrapped (call rebuild()); layers that reset() or the "
        "factory makes in another way than the constructor did (make the same "
        "ones); a clone() that builds another network; a loss that reads a "
        "member which forward() assigns to (return it from forward(), because "
        "each replica has its own)";
  }
  return problem;
}

std::unique_ptr<ModuleComparison> run_module(const Trial& trial,
                                             const KeptTensors& buffers) {
  std::unique_ptr<ModuleComparison> comparison;
  const size_t shards = trial.batch.parts.size();
  const size_t tries = trial.group.devices().front().is_cpu()
                           ? shards
                           : std::min<size_t>(shards, 1);
  for (size_t part = 0; part < tries; ++part) {
    trial.on_shard(part, [&](Replica&) {
      comparison = std::make_unique<ModuleComparison>(trial, part, buffers);
      comparison->run_module();
      comparison->run_forward_again();
    });
    if (comparison->is_conclusive()) break;
  }
  return comparison;
}

std::unique_ptr<ModuleComparison> run_module_again(const Trial& trial,
                                                   const KeptTensors& buffers,
                                                   Extent extent) {
  std::unique_ptr<ModuleComparison> comparison;
  if (trial.batch.parts.empty()) return comparison;
  trial.on_shard(0, [&](Replica&) {
    comparison = std::make_unique<ModuleComparison>(trial, 0, buffers, extent);
    comparison->run_module();
  });
  return comparison;
}

std::unique_ptr<ModuleComparison> run_module_first(const Trial& trial,
                                                   const KeptTensors& buffers) {
  const ProcessGroup& world = trial.group.options().process_group();
  const uint64_t before = world.sequence_number();
  auto comparison = run_module(trial, buffers);
  if (comparison) {
    trial.on_shard(comparison->part(),
                   [&](Replica&) { comparison->run_module_on_others(); });
  }
  trial.group.set_calls_ranks(world.sequence_number() != before);
  return comparison;
}

void compare_replica(const Trial& trial, ModuleComparison& comparison) {
  trial.on_shard(comparison.part(), [&](Replica& replica) {
    trial.group.load_replica(trial.index_of(comparison.part()), replica);
    comparison.compare(replica);
  });
}

void explain(const Trial& trial, ModuleComparison& comparison,
             Findings& findings) {
  trial.on_shard(comparison.part(),
                 [&](Replica&) { comparison.explain(findings); });
}

}  // namespace lockstep
