#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::differential {

using Shape = std::vector<int64_t>;

struct ParameterSpec {
  Shape shape;
  bool requires_grad = true;
  int part = -1;     ///< the submodule that registers it; -1: the module itself
  int tied_to = -1;  ///< the same tensor under another name
  /// It is tied by assignment to the member, which the registry does not have.
  bool is_assigned = false;
  std::string dtype{};  ///< "": the case's
};

struct InputSpec {
  std::string kind;  ///< real, index, undefined, none or marks
  Shape shape{};     ///< without the batch dimension
  bool requires_grad = false;
};

/// An operation of operations.cc on earlier values. Values are numbered: the
/// inputs first, then the nodes.
struct Node {
  std::string operation;
  std::vector<int> arguments{};
  std::vector<int64_t> numbers{};
};

/// An optimizer of a program.
struct OptimizerSpec {
  std::string kind = "sgd";  ///< sgd, adamw, adam or rmsprop
  /// Trains each parameter whose place, divided by `parts`, leaves `part`.
  int64_t part = 0;
  int64_t parts = 1;
  double rate = 0.05;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// A statement of a training loop, or a change of the model; see history.h.
struct Event {
  std::string what;
  std::vector<int64_t> numbers{};
  std::string loss{};  ///< of a statement of a program; see losses.h
};

/// A module, the way it is trained, and what happens on the way: everything
/// that a run depends on, as data.
struct Case {
  uint64_t seed = 0;
  std::string kind = "dp";  ///< dp, world or ddp
  /// The way in which steps train: forward, train_step or gradients; or
  /// program, in which each statement names its own.
  std::string mode = "forward";
  std::string dtype = "double";  ///< double, float, half, bfloat16, complex
  std::string backend = "shm";   ///< of several ranks
  bool has_processes = false;    ///< ranks are processes, not threads
  int64_t devices = 2;
  int64_t ranks = 1;
  int64_t shards = 2;

  std::vector<ParameterSpec> parameters;
  int64_t parts = 0;
  bool registers_twice = false;  ///< part 0 has two names
  std::vector<int64_t> norms;    ///< features of each BatchNorm1d
  int64_t trackers = 0;          ///< buffers of the module's own
  std::vector<InputSpec> inputs;
  std::string input_nesting = "tuple";  ///< tuple, list, nested or dict
  std::vector<Node> nodes;
  std::vector<int> outputs;
  std::string output_nesting = "tuple";
  /// A rule that the module breaks; see interpreted_module.h.
  std::string flaw{};
  bool has_factory = false;  ///< replicas are made by one, not by clone()
  bool verifies = true;      ///< the first step checks itself

  std::string loss = "square";   ///< square, dot, sum or force
  bool has_l2 = false;           ///< the loss takes the parameters, too
  bool has_residual = false;     ///< adds a leaf to the first output
  bool passes_gradient = false;  ///< backward(gradient) on the outputs

  std::string optimizer = "sgd";  ///< sgd or adamw
  double rate = 0.05;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  std::vector<OptimizerSpec> optimizers;  ///< of a program, instead

  std::string average = "samples";  ///< of ddp: samples or ranks
  bool finds_unused = false;
  bool is_static = false;
  bool has_bucket_views = true;
  bool has_small_buckets = false;

  std::vector<Event> history;
};

std::string to_text(const Case& value);
/// Throws nlohmann::json::exception for what is no case.
Case case_of_text(const std::string& text);

/// Returns whether a shard's result depends on the other samples of the shard.
bool couples_samples(const Case& value);
/// Returns true if no output depends on some parameter that is trained.
bool leaves_parameters_unused(const Case& value);
bool has_operation(const Case& value, const std::string& operation);
bool has_event(const Case& value, const std::string& what);
inline bool is_program(const Case& value) { return value.mode == "program"; }
/// Returns whether the ranks wrap the module in DistributedDataParallel. Ranks
/// with several devices use DataParallel.
inline bool uses_ddp(const Case& value) {
  return value.kind != "dp" && value.devices == 1;
}
/// Beginning of the names of statements that one rank executes and the others
/// do not; see history.h.
inline constexpr std::string_view kOneRank = "one_rank_";
bool is_of_one_rank(const Event& event);
/// Returns true if a program has such a statement.
bool has_one_rank_that_differs(const Case& value);
/// Returns true if the module or a loss of a program breaks a rule of
/// train_step() or of replicas.
bool has_bad_module_or_loss(const Case& value);
/// Returns true if a program may be refused: because of its module, a loss, a
/// member that changes or a rank that differs.
bool breaks_contract(const Case& value);
/// The optimizers of a program, or the one of another case.
std::vector<OptimizerSpec> optimizers_of(const Case& value);

}  // namespace lockstep::differential
