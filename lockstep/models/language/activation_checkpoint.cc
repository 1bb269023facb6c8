#include "lockstep/models/language/activation_checkpoint.h"

#include <optional>
#include <utility>

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>

#include "lockstep/device/random.h"

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What has to be computed again, and what it was surrounded by.
struct Recomputed : torch::CustomClassHolder {
  std::function<torch::Tensor(const torch::Tensor&)> function;
  RandomState random;
  at::ThreadLocalState thread;  // of autograd and autocast
  at::ScalarType autocast_dtype = at::kFloat;
};

class Recomputation : public torch::autograd::Function<Recomputation> {
 public:
  // `tensors`: the input, then the parameters. Autograd is off here, so that
  // nothing of the inside is kept.
  static torch::Tensor forward(AutogradContext* context,
                               const c10::intrusive_ptr<Recomputed>& recomputed,
                               const variable_list& tensors) {
    context->save_for_backward(tensors);
    context->saved_data["recomputed"] = c10::IValue::make_capsule(recomputed);
    return recomputed->function(tensors[0]);
  }

  static variable_list backward(AutogradContext* context,
                                variable_list gradients) {
    const auto recomputed = c10::static_intrusive_pointer_cast<Recomputed>(
        context->saved_data["recomputed"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    // The first of apply()'s arguments is not a tensor.
    const auto is_wanted = [&](size_t i) {
      return context->needs_input_grad(i + 1);
    };
    const torch::Tensor input =
        saved[0].detach().set_requires_grad(is_wanted(0));
    const torch::Tensor output = compute_again(*recomputed, input);
    variable_list wanted;
    for (size_t i = 0; i < saved.size(); ++i) {
      if (is_wanted(i)) wanted.push_back(i == 0 ? input : saved[i]);
    }
    const variable_list found = torch::autograd::grad(
        {output}, wanted, {gradients[0]}, /*retain_graph=*/std::nullopt,
        /*create_graph=*/false, /*allow_unused=*/true);
    variable_list result(saved.size() + 1);
    auto next = found.begin();
    for (size_t i = 0; i < saved.size(); ++i) {
      if (is_wanted(i)) result[i + 1] = *next++;
    }
    return result;
  }

 private:
  static torch::Tensor compute_again(const Recomputed& recomputed,
                                     const torch::Tensor& input) {
    const at::ThreadLocalStateGuard thread(recomputed.thread);
    const at::AutoGradMode with_graph(true);
    const RandomScope random(recomputed.random);
    const auto device = input.device().type();
    const auto outer_dtype = at::autocast::get_autocast_dtype(device);
    at::autocast::set_autocast_dtype(device, recomputed.autocast_dtype);
    auto output = recomputed.function(input);
    at::autocast::set_autocast_dtype(device, outer_dtype);
    return output;
  }
};

}  // namespace

torch::Tensor activation_checkpoint(
    std::function<torch::Tensor(const torch::Tensor& input)> function,
    const torch::Tensor& input, std::vector<torch::Tensor> parameters) {
  auto recomputed = c10::make_intrusive<Recomputed>();
  recomputed->function = std::move(function);
  recomputed->random = RandomState::of_thread();
  recomputed->autocast_dtype =
      at::autocast::get_autocast_dtype(input.device().type());
  parameters.insert(parameters.begin(), input);
  return Recomputation::apply(recomputed, parameters);
}

}  // namespace lockstep::models
