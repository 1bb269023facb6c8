#include "tests/differential/operations.h"

#include <functional>
#include <map>
#include <stdexcept>

namespace lockstep::differential {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::indexing::Slice;

namespace {

/// The identity function. Its backward throws for a batch with a marked sample.
struct Trap : torch::autograd::Function<Trap> {
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const Tensor& marks) {
    context->saved_data["throws"] = marks.ne(0).any().item<bool>();
    return x.clone();
  }
  static variable_list backward(AutogradContext* context,
                                variable_list gradients) {
    if (context->saved_data["throws"].toBool()) {
      throw std::runtime_error("marked sample in the backward");
    }
    return {gradients[0], Tensor()};
  }
};

/// Computes a + b. The backward gives both the same tensor.
struct SharedGradient : torch::autograd::Function<SharedGradient> {
  static Tensor forward(AutogradContext*, const Tensor& a, const Tensor& b) {
    return a + b;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], gradients[0]};
  }
};

struct Call {
  InterpretedModule& module;
  const std::vector<Tensor>& arguments;
  const std::vector<int64_t>& numbers;

  const Tensor& operator[](size_t i) const { return arguments.at(i); }
  int64_t number(size_t i) const { return numbers.at(i); }
};

using Operation = std::function<Tensor(const Call&)>;
using Table = std::map<std::string, Operation>;

void add_elementwise(Table& table) {
  table["tanh"] = [](const Call& c) { return c[0].tanh(); };
  table["sin"] = [](const Call& c) { return c[0].sin(); };
  table["sigmoid"] = [](const Call& c) { return c[0].sigmoid(); };
  table["relu"] = [](const Call& c) { return c[0].relu(); };
  table["gelu"] = [](const Call& c) { return at::gelu(c[0]); };
  table["softmax"] = [](const Call& c) { return c[0].softmax(-1); };
  table["neg"] = [](const Call& c) { return c[0].neg(); };
  table["half"] = [](const Call& c) { return c[0] * 0.5; };
  table["clone"] = [](const Call& c) { return c[0].clone(); };
  table["detach"] = [](const Call& c) { return c[0].detach(); };
  table["add"] = [](const Call& c) { return c[0] + c[1]; };
  table["sub"] = [](const Call& c) { return c[0] - c[1]; };
  table["mul"] = [](const Call& c) { return c[0] * c[1]; };
  // Addends that are not there, as a bias or a mask may be.
  table["add_if_defined"] = [](const Call& c) {
    return c[1].defined() ? c[0] + c[1] : c[0] * 1;
  };
  table["undefined"] = [](const Call&) { return Tensor(); };
  table["shared_gradient"] = [](const Call& c) {
    return SharedGradient::apply(c[0], c[1]);
  };
  table["trap"] = [](const Call& c) { return Trap::apply(c[0], c[1]); };
  table["to_type_of"] = [](const Call& c) {
    return c[0].to(c[1].scalar_type());
  };
  table["dropout"] = [](const Call& c) {
    return torch::dropout(c[0], 0.3, c.module.is_training());
  };
}

void add_in_place(Table& table) {
  table["add_"] = [](const Call& c) {
    Tensor x = c[0];
    return x.add_(c[1]);
  };
  table["mul_"] = [](const Call& c) {
    Tensor x = c[0];
    return x.mul_(c[1]);
  };
  table["tanh_"] = [](const Call& c) {
    Tensor x = c[0];
    return x.tanh_();
  };
  // Writes into a view: the first row of dimension `number`.
  table["halve_slice_"] = [](const Call& c) {
    c[0].select(c.number(0), 0).mul_(0.5);
    return c[0];
  };
}

void add_views(Table& table) {
  table["transpose"] = [](const Call& c) {
    return c[0].transpose(c.number(0), c.number(1));
  };
  table["unsqueeze"] = [](const Call& c) {
    return c[0].unsqueeze(c.number(0));
  };
  table["squeeze"] = [](const Call& c) { return c[0].squeeze(c.number(0)); };
  table["slice"] = [](const Call& c) {
    return c[0].slice(c.number(0), c.number(1), c.number(2), c.number(3));
  };
  table["select"] = [](const Call& c) {
    return c[0].select(c.number(0), c.number(1));
  };
  table["expand"] = [](const Call& c) { return c[0].expand(c.numbers); };
  table["reshape"] = [](const Call& c) { return c[0].reshape(c.numbers); };
  // Reshapes each sample.
  table["reshape_samples"] = [](const Call& c) {
    std::vector<int64_t> shape{c[0].size(0)};
    shape.insert(shape.end(), c.numbers.begin(), c.numbers.end());
    return c[0].reshape(shape);
  };
  table["alias"] = [](const Call& c) { return c[0].view_as(c[0]); };
  table["diagonal"] = [](const Call& c) { return c[0].diagonal(); };
  table["unfold"] = [](const Call& c) {
    return c[0].unfold(c.number(0), c.number(1), 1);
  };
}

void add_structure(Table& table) {
  table["flip"] = [](const Call& c) { return c[0].flip(c.number(0)); };
  table["cat"] = [](const Call& c) {
    return torch::cat(c.arguments, c.number(0));
  };
  table["stack"] = [](const Call& c) {
    return torch::stack(c.arguments, c.number(0));
  };
  table["sum"] = [](const Call& c) { return c[0].sum(c.number(0)); };
  table["mean"] = [](const Call& c) { return c[0].mean(c.number(0)); };
  table["sum_all"] = [](const Call& c) { return c[0].sum(); };
  table["matmul"] = [](const Call& c) { return torch::matmul(c[0], c[1]); };
  table["linear"] = [](const Call& c) {
    return torch::linear(c[0], c[1], c.arguments.size() > 2 ? c[2] : Tensor());
  };
  table["index"] = [](const Call& c) {
    return c[0].index({c[1].toType(torch::kLong)});
  };
  table["embedding"] = [](const Call& c) {
    return torch::embedding(c[0], c[1]);
  };
  table["index_rows"] = [](const Call& c) {
    return c[0].index_select(0, torch::tensor(c.numbers));
  };
  table["attention"] = [](const Call& c) {
    return at::scaled_dot_product_attention(c[0], c[1], c[2]);
  };
  table["layer_norm"] = [](const Call& c) {
    return torch::layer_norm(c[0], {c[0].size(-1)}, c[1], c[2]);
  };
}

void add_modules(Table& table) {
  table["parameter"] = [](const Call& c) {
    return c.module.parameter(c.number(0));
  };
  table["batch_norm"] = [](const Call& c) {
    return c.module.norms.at(static_cast<size_t>(c.number(0)))->forward(c[0]);
  };
  table["track"] = [](const Call& c) {
    Tensor& tracker = c.module.trackers.at(static_cast<size_t>(c.number(0)));
    if (c.module.is_training() && c[0].size(0) > 0) {
      const torch::NoGradGuard no_grad;
      tracker.mul_(0.5).add_(c[0].mean() * 0.5);
    }
    return c[0] + tracker.clone();
  };
  table["center"] = [](const Call& c) {
    return c.module.is_training() ? c[0] - c[0].mean(0) : c[0] * 1;
  };
}

const Table& operations() {
  static const Table table = [] {
    Table all;
    add_elementwise(all);
    add_in_place(all);
    add_views(all);
    add_structure(all);
    add_modules(all);
    return all;
  }();
  return table;
}

}  // namespace

Tensor compute(InterpretedModule& module, const Node& node,
               const std::vector<Tensor>& arguments) {
  return operations().at(node.operation)({module, arguments, node.numbers});
}

}  // namespace lockstep::differential
