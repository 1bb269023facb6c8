#pragma once

#include <string>
#include <vector>

#include "tests/differential/case.h"
#include "tests/differential/random.h"

namespace lockstep::differential {

/// Fills in the module of a case: inputs, parameters and nodes at random, of
/// shapes that fit. Calls no LibTorch, so that it may run before a fork.
class GraphBuilder {
 public:
  /// Kinds of outputs.
  enum class Outputs {
    kAny,
    kGathered,  ///< samples, or a scalar that is the same for every shard
    kSamples,
  };

  GraphBuilder(Case& target, Random& random);

  /// `operations` random ones, then outputs.
  void build(int64_t operations, Outputs outputs);

 private:
  /// Known properties of a value of the program.
  struct Value {
    bool is_batched = false;
    Shape shape{};            ///< without the batch dimension
    bool is_usable = true;    ///< a real (or complex) tensor
    bool is_trained = false;  ///< a parameter gets a gradient through it
  };

  void add_inputs();
  int add(const std::string& operation, std::vector<int> arguments,
          std::vector<int64_t> numbers, Value value);
  int add_parameter(const Shape& shape);
  /// A new parameter or an earlier one of this shape.
  int parameter(const Shape& shape);
  /// An unbatched value that can be added to samples of `shape`.
  int addend(const Shape& shape);
  /// Adds a random operation.
  void grow();
  void grow_unary(int x);
  void grow_view(int x);
  void grow_shared(int x);
  void grow_binary(int x);
  void grow_in_place(int x);
  void grow_structure(int x);
  void grow_layer(int x);
  void grow_coupled(int x);
  void add_odd_parameters();
  void choose_outputs(Outputs outputs);

  int random_value(bool is_batched);
  int last_batched(bool is_trained = false) const;
  bool is_complex() const { return case_.dtype == "complex"; }
  const Value& at(int x) const { return values_[static_cast<size_t>(x)]; }
  /// The tensor dimension of feature dimension `d` of `x`.
  int64_t dim(int x, int64_t d) const { return d + (at(x).is_batched ? 1 : 0); }

  Case& case_;
  Random& random_;
  std::vector<Value> values_;
};

}  // namespace lockstep::differential
