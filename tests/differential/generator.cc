#include "tests/differential/generator.h"

#include <algorithm>
#include <set>

#include "tests/differential/graph_builder.h"
#include "tests/differential/random.h"

namespace lockstep::differential {

namespace {

void choose_strategy(Case& of, Random& random) {
  if (of.kind == "dp") {
    static const std::vector<std::string> modes{"forward", "train_step",
                                                "gradients"};
    of.mode = random.pick(modes);
    of.devices = random.between(1, 3);
    of.shards = of.devices + (random.once_in(2) ? random.between(0, 3) : 0);
    of.shards = std::max<int64_t>(of.shards, 1 + random.below(2));
  } else if (of.kind == "world") {
    of.mode = random.once_in(3) ? "gradients" : "train_step";
    of.ranks = random.once_in(4) ? 3 : 2;
    of.devices = random.once_in(3) ? 2 : 1;
    of.shards = of.ranks * of.devices;
    if (of.mode == "gradients") {
      // Each rank must have as many samples, which is known.
      if (random.once_in(2)) of.shards *= 2;
    } else if (random.once_in(2)) {
      of.shards += random.between(1, 3);
    }
    of.backend = random.once_in(3) ? "tcp" : "shm";
  } else {
    of.mode = "forward";
    of.ranks = random.once_in(4) ? 3 : 2;
    of.devices = 1;
    of.shards = of.ranks;
    of.backend = random.once_in(3) ? "tcp" : "shm";
    static const std::vector<std::string> averages{"samples", "ranks"};
    of.average = random.pick(averages);
    of.is_static = random.once_in(6);
    of.finds_unused = random.once_in(2);
    of.has_bucket_views = !random.once_in(3);
    of.has_small_buckets = random.once_in(2);
  }
}

void choose_dtype(Case& of, Random& random) {
  const int64_t k = random.below(20);
  of.dtype = k < 12   ? "double"
             : k < 16 ? "float"
             : k < 17 ? "half"
             : k < 18 ? "bfloat16"
                      : "complex";
  // LibTorch's own step() updates complex parameters, and not in blocks.
  if (of.dtype == "complex" && of.mode == "train_step" && !random.once_in(8)) {
    of.dtype = "double";
  }
}

void choose_optimizer(Case& of, Random& random) {
  of.optimizer = random.once_in(3) ? "adamw" : "sgd";
  // AdamW's squares of gradients vanish in half, whoever computes them.
  if (of.dtype == "half") of.optimizer = "sgd";
  if (of.optimizer == "sgd" && random.once_in(2)) {
    of.momentum = 0.9;
    of.nesterov = random.once_in(2);
  }
  if (random.once_in(3)) of.weight_decay = 0.01;
  of.rate = of.optimizer == "adamw" ? 0.01 : 0.05;
}

void choose_loss(Case& of, Random& random) {
  static const std::vector<std::string> losses{"square", "square", "dot",
                                               "sum"};
  of.loss = random.pick(losses);
  if (of.mode == "forward") {
    of.has_residual = random.once_in(3);
    of.passes_gradient = of.kind == "dp" && random.once_in(3);
  }
  of.has_l2 = random.once_in(of.mode == "train_step" ? 24 : 10);
  if (of.kind == "ddp" && of.dtype == "double" && random.once_in(16)) {
    of.loss = "force";
    of.inputs[0].requires_grad = true;
  }
  // An own optimizer's step has nowhere to put it, which is known.
  for (InputSpec& input : of.inputs) {
    if (of.mode != "forward" && !random.once_in(8)) {
      input.requires_grad = false;
    }
  }
}

/// The samples of a batch: around what is critical for the shards.
int64_t choose_batch(const Case& of, Random& random) {
  if (of.kind == "world" && of.mode == "gradients" && !random.once_in(32)) {
    return random.between(1, 3) * of.shards;
  }
  switch (random.below(10)) {
    case 0:
      return 1;
    case 1:
    case 2:
      return of.shards;
    case 3:
      return std::max<int64_t>(1, of.shards - 1);
    case 4:
      return of.shards + 1;
    case 5:
      return random.once_in(4) ? 0 : 2;
    default:
      return random.between(1, 3) * of.shards + random.below(of.shards);
  }
}

/// An event other than a step.
Event choose_event(const Case& of, Random& random) {
  const auto parameter = [&] {
    return random.below(
        std::max<int64_t>(1, static_cast<int64_t>(of.parameters.size())));
  };
  const int64_t batch = choose_batch(of, random);
  const int64_t sample = random.below(std::max<int64_t>(1, batch));
  switch (random.below(18)) {
    case 0:
    case 1:
      return {"clip", {random.between(1, 4)}};
    case 2:
      return {"clip", {0}};
    case 3:
    case 4:
      return {"accumulate", {batch, choose_batch(of, random)}};
    case 5:
      return {"freeze", {parameter()}};
    case 6:
      return {"unfreeze", {parameter()}};
    case 7:
      return {"fail_loss", {std::max<int64_t>(1, batch), sample}};
    case 8:
    case 9:
      return {"fail_backward", {std::max<int64_t>(1, batch), sample}};
    case 10:
    case 11:
    case 12:
      return {"evaluate", {random.below(4), std::max<int64_t>(1, batch)}};
    case 13:
      return {random.once_in(2) ? "load" : "scale", {parameter()}};
    case 14:
      return {"cast", {random.below(2)}};
    case 15:
      return {"poison", {std::max<int64_t>(1, batch), sample}};
    case 16:
      return random.once_in(4)   ? Event{"hook", {parameter()}}
             : random.once_in(2) ? Event{"keep_gradients", {}}
                                 : Event{"set_to_none", {random.below(2)}};
    default:
      return {"rate", {random.between(1, 3)}};
  }
}

/// Returns whether the event makes sense for the way in which the case is
/// trained.
bool is_possible(const Case& of, const Event& event, Random& random) {
  if (event.what == "evaluate") {
    // With the gradient's machinery on, ranks refuse it; it is known.
    return of.ranks == 1 || event.numbers[0] != 3;
  }
  if (event.what == "accumulate") return of.mode != "train_step";
  const bool fails = event.what == "fail_loss" || event.what == "fail_backward";
  if (fails) {
    // Ranks can't go on, which is known.
    return of.ranks == 1;
  }
  if (event.what == "poison") {
    return of.mode != "forward" && random.once_in(3);
  }
  // A backward that gives no parameter a gradient exchanges nothing, so each
  // rank keeps its buffers.
  const bool has_buffers = of.trackers > 0 || !of.norms.empty();
  if (of.kind == "ddp" && event.what == "freeze" && has_buffers &&
      std::any_of(of.inputs.begin(), of.inputs.end(),
                  [](const InputSpec& input) { return input.requires_grad; })) {
    return false;
  }
  if (event.what == "cast" || event.what == "freeze" ||
      event.what == "unfreeze") {
    if (of.kind == "ddp") return random.once_in(4);
  }
  const bool moves =
      event.what == "cast" || event.what == "load" || event.what == "scale";
  // A write to parameters that ranks share is refused by the next step only.
  if (event.what == "scale" && of.kind == "world") return false;
  if (moves && of.kind == "world") return random.once_in(4);
  return true;
}

void choose_history(Case& of, Random& random) {
  const auto step = [&] {
    of.history.push_back({"step", {choose_batch(of, random)}});
  };
  if (!random.once_in(4)) {
    step();
  } else if (random.once_in(2)) {
    // Before there is anything that training made.
    of.history.push_back({"evaluate", {random.below(3), of.shards}});
  }
  for (int64_t i = random.between(0, 3); i > 0; --i) {
    const Event event = choose_event(of, random);
    if (is_possible(of, event, random)) of.history.push_back(event);
    step();
  }
  if (of.history.empty()) step();
}

/// A value with samples, early enough that other parameters have their
/// gradients before the backward comes to it; or the first output.
int choose_trapped(const Case& of, Random& random) {
  static const std::set<std::string> layers{
      "linear", "matmul", "layer_norm", "batch_norm", "embedding", "attention"};
  std::vector<int> fitting{of.outputs[0]};
  for (size_t i = 0; i < of.nodes.size(); ++i) {
    if (layers.count(of.nodes[i].operation) == 0) continue;
    fitting.push_back(static_cast<int>(of.inputs.size() + i));
  }
  return random.pick(fitting);
}

/// Lets a marked sample make the backward throw.
void set_trap(Case& of, Random& random) {
  const int trapped = choose_trapped(of, random);
  // Values from `first` on move by one.
  const auto make_room = [&of](int first) {
    const auto move = [first](int& value) {
      if (value >= first) ++value;
    };
    for (Node& node : of.nodes) {
      std::for_each(node.arguments.begin(), node.arguments.end(), move);
    }
    std::for_each(of.outputs.begin(), of.outputs.end(), move);
  };
  const auto marks = static_cast<int>(of.inputs.size());
  of.inputs.push_back({.kind = "marks"});
  make_room(marks);
  const int value = trapped >= marks ? trapped + 1 : trapped;
  const int trap = std::max(value, marks) + 1;
  make_room(trap);
  const auto place =
      of.nodes.begin() + (trap - static_cast<int>(of.inputs.size()));
  const auto inserted = of.nodes.insert(place, {"trap", {value, marks}, {}});
  const auto follow = [&](int& argument) {
    if (argument == value) argument = trap;
  };
  for (auto node = inserted + 1; node != of.nodes.end(); ++node) {
    std::for_each(node->arguments.begin(), node->arguments.end(), follow);
  }
  std::for_each(of.outputs.begin(), of.outputs.end(), follow);
}

}  // namespace

Case generate(const std::string& kind, uint64_t seed) {
  Random random(seed * 3 + (kind == "dp" ? 0 : kind == "world" ? 1 : 2));
  Case of;
  of.seed = seed;
  of.kind = kind;
  choose_strategy(of, random);
  choose_dtype(of, random);
  choose_optimizer(of, random);
  GraphBuilder(of, random)
      .build(random.between(1, 10), of.kind == "dp" && of.mode == "forward"
                                        ? GraphBuilder::Outputs::kGathered
                                        : GraphBuilder::Outputs::kAny);
  choose_loss(of, random);
  if (of.kind == "ddp" && leaves_parameters_unused(of) && !random.once_in(8)) {
    of.finds_unused = true;
  }
  choose_history(of, random);
  if (has_event(of, "fail_backward")) set_trap(of, random);
  return of;
}

}  // namespace lockstep::differential
