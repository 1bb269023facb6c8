#include <algorithm>
#include <utility>

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "lockstep/device/random.h"
#include "lockstep/device/torch_compat.h"
#include "lockstep/lm/models/language_model.h"

namespace lockstep::models {
namespace {

using torch::autograd::variable_list;

using Function = std::function<torch::Tensor(const torch::Tensor& input)>;

/// The graph node of the function. It is not a torch::autograd::Function, which
/// takes no list of tensors as inputs.
class Recomputation : public torch::autograd::Node {
 public:
  /// `tensors`: the input, then the parameters.
  Recomputation(Function function, const variable_list& tensors,
                RandomState random)
      : function_(std::move(function)),
        random_(std::move(random)),
        autocast_dtype_(
            at::autocast::get_autocast_dtype(tensors[0].device().type())) {
    for (const auto& tensor : tensors) {
      saved_.emplace_back(tensor, /*is_output=*/false);
    }
    set_next_edges(torch::autograd::collect_next_edges(tensors));
  }

  variable_list apply(variable_list&& gradients) override {
    variable_list saved;
    for (const auto& tensor : saved_) saved.push_back(tensor.unpack());
    const torch::Tensor input =
        saved[0].detach().set_requires_grad(task_should_compute_output(0));
    const torch::Tensor output = compute_again(input);
    variable_list wanted;
    for (size_t i = 0; i < saved.size(); ++i) {
      if (!task_should_compute_output(i)) continue;
      wanted.push_back(i == 0 ? input : saved[i]);
    }
    const variable_list found = torch::autograd::grad(
        {output}, wanted, {gradients[0]}, /*retain_graph=*/std::nullopt,
        /*create_graph=*/false, /*allow_unused=*/true);
    variable_list result(saved.size());
    auto next = found.begin();
    for (size_t i = 0; i < saved.size(); ++i) {
      if (task_should_compute_output(i)) result[i] = *next++;
    }
    return result;
  }

  void release_variables() override {
    for (auto& tensor : saved_) tensor.reset_data();
    function_ = nullptr;
  }

  std::string name() const override { return "ActivationCheckpoint"; }

 private:
  torch::Tensor compute_again(const torch::Tensor& input) const {
    const at::ThreadLocalStateGuard thread(thread_);
    const at::AutoGradMode with_graph(true);
    const RandomScope random(random_);
    const auto device = input.device().type();
    const auto outer_dtype = at::autocast::get_autocast_dtype(device);
    at::autocast::set_autocast_dtype(device, autocast_dtype_);
    torch::Tensor output = function_(input);
    at::autocast::set_autocast_dtype(device, outer_dtype);
    return output;
  }

  Function function_;
  std::vector<torch::autograd::SavedVariable> saved_;
  // The environment in which the function ran.
  RandomState random_;
  at::ThreadLocalState thread_;  // includes the state of autocast
  at::ScalarType autocast_dtype_;
};

}  // namespace

torch::Tensor activation_checkpoint(Function function,
                                    const torch::Tensor& input,
                                    std::vector<torch::Tensor> parameters) {
  parameters.insert(parameters.begin(), input);
  const bool has_graph =
      torch::GradMode::is_enabled() &&
      std::any_of(parameters.begin(), parameters.end(),
                  [](const auto& tensor) { return tensor.requires_grad(); });
  if (!has_graph) return function(input);
  const auto node = make_node<Recomputation>(function, parameters,
                                             RandomState::from_thread());
  torch::Tensor output;
  {
    const torch::NoGradGuard without_graph;
    output = function(input).detach();
  }
  torch::autograd::create_gradient_edge(output, node);
  return output;
}

}  // namespace lockstep::models
