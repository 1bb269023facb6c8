#include "tests/differential/interpreted_module.h"

#include <set>
#include <stdexcept>

#include <torch/nn/modules/batchnorm.h>

#include "tests/differential/operations.h"
#include "tests/differential/random.h"

namespace lockstep::differential {

using c10::IValue;
using torch::Tensor;

namespace {

/// Returns the values of parameter `p`, which depend only on the case and `p`.
Tensor initial(const Case& of, size_t p) {
  const ParameterSpec& spec = of.parameters[p];
  const auto type = dtype_of(spec.dtype.empty() ? of.dtype : spec.dtype);
  auto generator = at::detail::createCPUGenerator(of.seed * 1000 + p);
  const auto wide =
      c10::isComplexType(type) ? torch::kComplexDouble : torch::kDouble;
  Tensor values =
      torch::randn(spec.shape, generator, torch::TensorOptions().dtype(wide));
  return (values * 0.5).to(type);
}

std::string name_of(size_t p) { return "p" + std::to_string(p); }

}  // namespace

torch::Dtype dtype_of(const std::string& name) {
  if (name == "double") return torch::kDouble;
  if (name == "float") return torch::kFloat;
  if (name == "half") return torch::kHalf;
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "complex") return torch::kComplexDouble;
  throw std::invalid_argument("no such dtype: " + name);
}

PartImpl::PartImpl(std::shared_ptr<const Case> of, int number)
    : definition(std::move(of)), part(number) {
  reset();
}

void PartImpl::reset() {
  tensors.assign(definition->parameters.size(), {});
  for (size_t p = 0; p < tensors.size(); ++p) {
    const ParameterSpec& spec = definition->parameters[p];
    if (part < 0 || spec.part != part) continue;
    tensors[p] = register_parameter(name_of(p), initial(*definition, p),
                                    spec.requires_grad);
  }
}

InterpretedModule::InterpretedModule(std::shared_ptr<const Case> of)
    : definition(std::move(of)) {
  reset();
  for (size_t p = 0; p < tensors.size(); ++p) {
    const ParameterSpec& spec = definition->parameters[p];
    if (spec.is_assigned) {
      tensors[p] = tensors[static_cast<size_t>(spec.tied_to)];
    }
  }
  if (definition->flaw == "other_reset") factor = 2;
  is_made_ = true;
}

void InterpretedModule::reset() {
  const Case& of = *definition;
  if (of.flaw == "other_reset") factor = 1;
  if (of.flaw == "other_parameters" && is_made_) {
    register_parameter("other", torch::ones({1}));
  }
  late_ = Tensor();
  parts.clear();
  norms.clear();
  trackers.clear();
  tensors.assign(of.parameters.size(), {});
  for (size_t p = 0; p < tensors.size(); ++p) {
    const ParameterSpec& spec = of.parameters[p];
    if (spec.part >= 0) continue;
    if (spec.tied_to >= 0 && !spec.is_assigned) {
      tensors[p] = tensors[static_cast<size_t>(spec.tied_to)];
      // register_parameter() would change requires_grad.
      parameters_.insert(name_of(p), tensors[p]);
    } else {
      tensors[p] =
          register_parameter(name_of(p), initial(of, p), spec.requires_grad);
    }
  }
  for (int64_t k = 0; k < of.parts; ++k) {
    auto part = std::make_shared<PartImpl>(definition, static_cast<int>(k));
    parts.push_back(register_module("part" + std::to_string(k), part));
    if (k == 0 && of.registers_twice) register_module("again", part);
  }
  for (size_t k = 0; k < of.norms.size(); ++k) {
    torch::nn::BatchNorm1d norm(of.norms[k]);
    const auto type = dtype_of(of.dtype);
    for (Tensor& each : norm->parameters()) each.set_data(each.to(type));
    norm->running_mean.set_data(norm->running_mean.to(type));
    norm->running_var.set_data(norm->running_var.to(type));
    norms.push_back(register_module("norm" + std::to_string(k), norm));
  }
  for (int64_t k = 0; k < of.trackers; ++k) {
    trackers.push_back(register_buffer(
        "tracker" + std::to_string(k),
        torch::zeros({}, torch::TensorOptions().dtype(dtype_of(of.dtype)))));
  }
}

Tensor InterpretedModule::parameter(int64_t p) const {
  const auto place = static_cast<size_t>(p);
  const int part = definition->parameters.at(place).part;
  return part < 0 ? tensors.at(place)
                  : parts.at(static_cast<size_t>(part))->tensors.at(place);
}

std::vector<Tensor> InterpretedModule::unique_parameters() const {
  std::vector<Tensor> unique;
  std::set<const void*> seen;
  for (const Tensor& each : torch::nn::Module::parameters()) {
    if (seen.insert(each.unsafeGetTensorImpl()).second) unique.push_back(each);
  }
  return unique;
}

IValue InterpretedModule::forward(const IValue& inputs) {
  std::vector<Tensor> values = leaves_of(inputs);
  TORCH_CHECK(values.size() == definition->inputs.size(), "got ", values.size(),
              " inputs");
  for (const Node& node : definition->nodes) {
    std::vector<Tensor> arguments;
    for (const int argument : node.arguments) {
      arguments.push_back(values.at(static_cast<size_t>(argument)));
    }
    values.push_back(compute(*this, node, arguments));
  }
  std::vector<Tensor> outputs;
  for (const int output : definition->outputs) {
    outputs.push_back(values.at(static_cast<size_t>(output)));
  }
  outputs[0] = change(outputs[0]);
  return nest(outputs, definition->output_nesting,
              std::vector<bool>(outputs.size()));
}

Tensor InterpretedModule::change(const Tensor& output) {
  const std::string& flaw = definition->flaw;
  if (flaw.rfind("late_", 0) == 0) {
    if (!late_.defined()) late_ = make_late(output.options());
    return output * late_;
  }
  // Products are not enough: the first shard may have an output of zeros, and
  // the first step could not see what is wrong.
  if (flaw == "counts_forwards") {
    const auto calls = static_cast<double>(++forwards_);
    return output * calls + calls;
  }
  if (flaw == "own_random") {
    return output * (1 + own_random()) + own_random();
  }
  return factor == 1 ? output : output * factor + factor;
}

Tensor InterpretedModule::make_late(const torch::TensorOptions& options) {
  const Tensor values = torch::full({1}, 0.5, options.requires_grad(false));
  if (definition->flaw == "late_parameter") {
    return register_parameter("late", values);
  }
  const auto layer = std::make_shared<PartImpl>(definition, -1);
  register_module("late", layer);
  return layer->register_parameter("weight", values);
}

IValue nest(const std::vector<Tensor>& leaves, const std::string& nesting,
            const std::vector<bool>& is_none) {
  std::vector<IValue> values;
  for (size_t i = 0; i < leaves.size(); ++i) {
    values.push_back(is_none[i] ? IValue() : IValue(leaves[i]));
  }
  if (nesting == "nested" && values.size() > 1) {
    std::vector<IValue> rest(values.begin() + 1, values.end());
    return c10::ivalue::Tuple::create(
        {values[0], c10::ivalue::Tuple::create(std::move(rest))});
  }
  bool has_none = false;
  for (const bool each : is_none) has_none = has_none || each;
  if (nesting == "list" && !has_none) {
    return c10::List<Tensor>(leaves);
  }
  if (nesting == "dict" && !has_none) {
    c10::Dict<std::string, Tensor> dict;
    for (size_t i = 0; i < leaves.size(); ++i) {
      dict.insert("v" + std::to_string(i), leaves[i]);
    }
    return dict;
  }
  return c10::ivalue::Tuple::create(std::move(values));
}

std::vector<Tensor> leaves_of(const IValue& nested) {
  if (nested.isNone()) return {Tensor()};
  if (nested.isTensor()) return {nested.toTensor()};
  std::vector<Tensor> leaves;
  const auto add = [&](const IValue& child) {
    for (Tensor& leaf : leaves_of(child)) leaves.push_back(std::move(leaf));
  };
  if (nested.isTuple()) {
    for (const IValue& child : nested.toTupleRef().elements()) add(child);
  } else if (nested.isList()) {
    for (const IValue& child : nested.toListRef()) add(child);
  } else {
    for (const auto& entry : nested.toGenericDict()) add(entry.value());
  }
  return leaves;
}

}  // namespace lockstep::differential
