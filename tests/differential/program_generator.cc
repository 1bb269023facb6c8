#include <algorithm>
#include <optional>

#include "tests/differential/generator.h"
#include "tests/differential/graph_builder.h"
#include "tests/differential/history.h"
#include "tests/differential/losses.h"
#include "tests/differential/random.h"

namespace lockstep::differential {

namespace {

class ProgramGenerator {
 public:
  ProgramGenerator(const std::string& kind, uint64_t seed)
      : random_(seed * 4 + (kind == "dp"    ? 0
                            : kind == "shm" ? 1
                            : kind == "tcp" ? 2
                                            : 3)) {
    of_.seed = seed;
    of_.mode = "program";
    of_.kind = kind == "shm" || kind == "tcp" ? "world" : kind;
    of_.backend = kind == "tcp" ? "tcp" : "shm";
  }

  Case generate() {
    choose_strategy();
    choose_change();
    choose_module();
    choose_flaw();
    choose_optimizers();
    choose_losses();
    do {
      write_program();
    } while (!is_ordered(of_));
    return of_;
  }

 private:
  void choose_strategy() {
    if (of_.kind == "dp") {
      of_.devices = random_.between(1, 3);
      of_.shards = of_.devices + (random_.once_in(3) ? random_.below(3) : 0);
    } else {
      of_.ranks = random_.once_in(5) ? 3 : 2;
      of_.devices = of_.kind == "world" && random_.once_in(4) ? 2 : 1;
      of_.shards = of_.ranks * of_.devices;
    }
    if (of_.kind != "ddp") return;
    static const std::vector<std::string> averages{"ranks", "ranks", "samples"};
    of_.average = random_.pick(averages);
    of_.finds_unused = true;
    of_.is_static = false;
    of_.has_bucket_views = !random_.once_in(3);
    of_.has_small_buckets = random_.once_in(2);
    if (random_.once_in(3)) of_.backend = "tcp";
  }

  /// Something that happens in few programs, which then break no other rule.
  void choose_change() {
    differs_ = of_.ranks > 1 && random_.once_in(8);
    changes_member_ = !differs_ && random_.once_in(8);
  }

  void choose_module() {
    static const std::vector<std::string> dtypes{
        "double", "double", "double", "double", "float", "float", "bfloat16"};
    of_.dtype = random_.pick(dtypes);
    GraphBuilder(of_, random_)
        .build(random_.below(5), GraphBuilder::Outputs::kSamples);
    for (InputSpec& input : of_.inputs) input.requires_grad = false;
    for (Node& node : of_.nodes) {
      // Its numbers are not those of plain LibTorch.
      if (node.operation == "dropout") node.operation = "half";
    }
    // A rank must not cut its part again if samples influence each other.
    if (couples_samples(of_) && of_.ranks > 1) {
      of_.devices = 1;
      of_.shards = of_.ranks;
    }
    const bool has_buffers = of_.trackers > 0 || !of_.norms.empty();
    // There each parameter has to take part in a loop of the user's own.
    // Ranks of several devices only make steps.
    has_loops_ = (of_.kind != "world" || !leaves_parameters_unused(of_) ||
                  random_.once_in(16)) &&
                 (of_.ranks == 1 || of_.devices == 1);
    has_no_sync_ = (of_.ranks == 1 || !has_buffers) && random_.once_in(2);
  }

  void choose_flaw() {
    of_.has_factory = random_.once_in(6);
    if (differs_ || changes_member_ || !random_.once_in(5)) return;
    static const std::vector<std::string> flaws{"late_layer",
                                                "other_reset",
                                                "other_parameters",
                                                "counts_forwards",
                                                "own_random",
                                                "tie",
                                                "tie"};
    of_.flaw = random_.pick(flaws);
    // Until the ranks synchronise, which begins with the check, nothing is said
    // of what they have.
    if (of_.flaw.rfind("late_", 0) == 0) has_no_sync_ = false;
    if (of_.flaw != "tie") return;
    of_.flaw.clear();
    tie_by_assignment();
  }

  /// Lets a node read a parameter under a name that is assigned to.
  void tie_by_assignment() {
    for (Node& node : of_.nodes) {
      if (node.operation != "parameter") continue;
      ParameterSpec spec = of_.parameters[static_cast<size_t>(node.numbers[0])];
      if (spec.part >= 0 || spec.tied_to >= 0) continue;
      spec.tied_to = static_cast<int>(node.numbers[0]);
      spec.is_assigned = true;
      node.numbers[0] = static_cast<int64_t>(of_.parameters.size());
      of_.parameters.push_back(spec);
      return;
    }
  }

  void choose_optimizers() {
    static const std::vector<std::string> kinds{"sgd", "sgd", "adamw", "adam",
                                                "rmsprop"};
    const bool has_several =
        std::count_if(of_.parameters.begin(), of_.parameters.end(),
                      [](const auto& spec) { return spec.tied_to < 0; }) > 1;
    for (int64_t i = random_.between(1, 3); i > 0; --i) {
      OptimizerSpec spec{.kind = random_.pick(kinds)};
      if (has_several && random_.once_in(2)) {
        spec.parts = 2;
        spec.part = random_.below(2);
      }
      if (spec.kind != "sgd") spec.rate = 0.01;
      if (spec.kind == "sgd" && random_.once_in(2)) {
        spec.momentum = 0.9;
        spec.nesterov = random_.once_in(2);
      }
      if (random_.once_in(4)) spec.weight_decay = 0.01;
      of_.optimizers.push_back(spec);
    }
  }

  /// One or two losses; few programs break the contract.
  void choose_losses() {
    const bool is_broken = !differs_ && !changes_member_ && random_.once_in(5);
    for (int64_t i = random_.between(1, 2); i > 0; --i) {
      std::string loss;
      do {
        loss = kLosses[static_cast<size_t>(
            random_.below(static_cast<int64_t>(kLosses.size())))];
      } while (!is_allowed(loss, is_broken));
      losses_.push_back(loss);
    }
  }

  bool is_allowed(const std::string& loss, bool is_broken) const {
    // A first batch may have no ignored target by chance, and then the loss is
    // a mean over the samples. Kept cases have this loss.
    if (loss == "ignoring") return false;
    // The loss of one shard is that of the batch, and is not checked.
    if (loss == "noisy" && of_.shards == 1) return false;
    return is_broken || keeps_contract(loss);
  }

  void write_program() {
    of_.history.clear();
    is_local_ = false;
    // DistributedDataParallel checks the module in train_step() only.
    if (uses_ddp(of_) &&
        (of_.flaw == "counts_forwards" || of_.flaw == "own_random")) {
      write_train_step();
    }
    for (int64_t i = random_.between(differs_ ? 0 : 1, 5); i > 0; --i) {
      if (changes_member_ && random_.once_in(3)) write_member();
      write_statement();
    }
    if (!differs_ && !has_event(of_, "backward") &&
        !has_event(of_, "train_step")) {
      write_train_step();
    }
    if (changes_member_) {
      write_member();
      write_last_steps();
    }
    if (differs_) write_difference();
  }

  void write_member() {
    write("change_member", {random_.below(3)});
    if (random_.once_in(6)) write("rebuild", {});
  }

  /// The first step after a member changed, and perhaps others.
  void write_last_steps() {
    if (random_.once_in(3)) {
      write("evaluate", {random_.below(3), choose_batch()});
    }
    for (int64_t i = random_.between(1, 2); i > 0; --i) {
      if (random_.once_in(2)) {
        write_loop();
      } else {
        write_train_step();
      }
    }
  }

  /// Steps of one kind with one optimizer, a statement of one rank between
  /// them, and a step in which the ranks can compare the result.
  void write_difference() {
    const int64_t optimizer = choose_optimizer();
    const bool in_loop = has_loops_ && random_.once_in(2);
    const auto write_steps = [&](int64_t count) {
      for (; count > 0; --count) write_step_of(optimizer, in_loop);
    };
    write("no_sync", {0});
    write("zero_grad", {1});
    const int64_t before = random_.below(3);
    write_steps(before);
    const int64_t rank = random_.below(of_.ranks);
    if (in_loop && random_.once_in(3)) {
      write_gap(rank, optimizer);
    } else if (random_.once_in(2)) {
      write_other_weights(rank);
    } else {
      write_other_optimizer(rank, optimizer, before > 0);
    }
    write_steps(random_.between(2, 5));
    write_step_of(-1, in_loop);
  }

  /// A step that updates with `optimizer`, or -1: with none.
  void write_step_of(int64_t optimizer, bool in_loop) {
    if (!in_loop) {
      return write("train_step", {choose_batch(), optimizer, 0},
                   random_.pick(losses_));
    }
    write("zero_grad", {random_.below(2)});
    write_backward();
    if (optimizer >= 0) write("update", {optimizer, 0});
  }

  /// A part of a step that one rank leaves out.
  void write_gap(int64_t rank, int64_t optimizer) {
    write("zero_grad", {1});
    if (has_no_sync_ && random_.once_in(2)) {
      write("one_rank_no_sync", {rank, choose_batch()}, random_.pick(losses_));
      return write("update", {optimizer, 0});
    }
    write_backward();
    write("one_rank_skips_update", {rank, optimizer, 0});
  }

  /// A change that only `rank` makes, or that all make.
  void write_change_of(std::optional<int64_t> rank, const std::string& what,
                       std::vector<int64_t> numbers) {
    if (!rank) return write(what, std::move(numbers));
    numbers.insert(numbers.begin(), *rank);
    write(std::string(kOneRank) + what, std::move(numbers));
  }

  void write_other_weights(std::optional<int64_t> rank) {
    std::vector<int64_t> fitting;
    for (size_t p = 0; p < of_.parameters.size(); ++p) {
      const Shape& shape = of_.parameters[p].shape;
      const bool is_empty =
          std::find(shape.begin(), shape.end(), 0) != shape.end();
      if (!is_empty) fitting.push_back(static_cast<int64_t>(p));
    }
    if (random_.once_in(4)) return write_change_of(rank, "load_other", {});
    int64_t how = random_.below(3);
    // All ranks together may not write to memory that they share. A write
    // through data() is not visible to the engine.
    const bool is_of_all_ranks = of_.ranks > 1 && !rank;
    if (is_of_all_ranks) how = of_.backend == "tcp" ? how & 2 : 2;
    write_change_of(rank, "write",
                    {random_.pick(fitting), how, random_.below(2)});
  }

  void write_other_optimizer(std::optional<int64_t> rank, int64_t optimizer,
                             bool has_stepped) {
    const OptimizerSpec& spec = of_.optimizers[static_cast<size_t>(optimizer)];
    const bool has_state = spec.kind != "sgd" || spec.momentum > 0;
    const int64_t act = random_.below(4);
    if (act == 0 && has_state && has_stepped) {
      return write_change_of(rank, "set_state", {optimizer, random_.below(2)});
    }
    if (act == 1 && spec.kind != "rmsprop") {
      return write_change_of(rank, "raise_momentum", {optimizer});
    }
    if (act == 2) {
      return write_change_of(rank, "add_weight_decay",
                             {optimizer, random_.between(1, 2)});
    }
    static const std::vector<int64_t> quarters{1, 2, 3, 5, 8};
    write_change_of(rank, "multiply_rate", {optimizer, random_.pick(quarters)});
  }

  void write_statement() {
    switch (random_.below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return write_train_step();
      case 4:
      case 5:
        return write_backward();
      case 6:
        return write_update();
      case 7:
        return write("zero_grad", {random_.below(2)});
      case 8:
      case 9:
        if (has_no_sync_) write_no_sync();
        return;
      case 10:
        return write("evaluate", {random_.below(3), choose_batch()});
      case 11:
      case 12:
        return write_change();
      default:
        return write_loop();
    }
  }

  /// A step of a loop of the user's own.
  void write_loop() {
    if (!has_loops_) return write_train_step();
    write("zero_grad", {random_.below(2)});
    const bool accumulates = random_.once_in(3);
    if (accumulates && has_no_sync_) write("no_sync", {1});
    if (accumulates) write_backward();
    write("no_sync", {0});
    write_backward();
    write_update();
  }

  void write_no_sync() {
    is_local_ = !is_local_;
    write("no_sync", {is_local_ ? 1 : 0});
  }

  void write_train_step() {
    const int64_t optimizer =
        is_local_ || random_.once_in(4) ? -1 : choose_optimizer();
    const int64_t clip =
        optimizer >= 0 && random_.once_in(4) ? random_.between(1, 4) : 0;
    write("train_step", {choose_batch(), optimizer, clip},
          random_.pick(losses_));
  }

  void write_backward() {
    if (!has_loops_) return write_train_step();
    const std::string& loss = random_.pick(losses_);
    write("backward", {choose_batch()}, loss == "noisy" ? "square" : loss);
  }

  void write_update() {
    const int64_t optimizer = choose_optimizer();
    write("update",
          {optimizer, random_.once_in(4) ? random_.between(1, 4) : 0});
  }

  void write_change() {
    const int64_t parameter =
        random_.below(static_cast<int64_t>(of_.parameters.size()));
    switch (random_.below(8)) {
      case 0:
        return write("freeze", {parameter});
      case 1:
        return write("unfreeze", {parameter});
      case 2:
        return write("load", {});
      case 3:
        return write("rate", {random_.between(1, 3)});
      case 4:
        return write_other_weights({});
      case 5:
      case 6:
        return write_other_optimizer({}, choose_optimizer(), true);
      default:
        // After a train_step() ranks may share parameters. Each would scale
        // them.
        if (of_.ranks == 1) write("scale", {parameter});
    }
  }

  void write(const std::string& what, std::vector<int64_t> numbers,
             const std::string& loss = "") {
    if (what == "no_sync") is_local_ = numbers[0] != 0;
    of_.history.push_back({what, std::move(numbers), loss});
  }

  int64_t choose_optimizer() {
    return random_.below(static_cast<int64_t>(of_.optimizers.size()));
  }

  int64_t choose_batch() {
    // BatchNorm takes two samples at least.
    const int64_t unit = of_.shards * (couples_samples(of_) ? 2 : 1);
    const int64_t samples = random_.between(1, 3) * unit;
    // The weight of a local gradient in an uneven split is not promised.
    if (of_.ranks > 1 && (has_no_sync_ || couples_samples(of_))) return samples;
    return samples + (random_.once_in(3) ? random_.below(of_.shards) : 0);
  }

  Random random_;
  Case of_;
  std::vector<std::string> losses_;
  bool differs_ = false;         // one rank does something else
  bool changes_member_ = false;  // of the module
  bool has_loops_ = true;
  bool has_no_sync_ = false;
  bool is_local_ = false;
};

}  // namespace

Case generate_program(const std::string& kind, uint64_t seed) {
  return ProgramGenerator(kind, seed).generate();
}

}  // namespace lockstep::differential
