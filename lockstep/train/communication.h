#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::train {

/// How ranks send gradients.
enum class GradCompression {
  kNone,
  kBFloat16,  ///< rounded, half the bytes
  kFloat16,   ///< likewise
  kPowerSgd,  ///< a product of two matrices of a low rank (PowerSGD)
};

/// "none", "bf16", "fp16", "powersgd"; throws InvalidArgument with the nearest.
GradCompression parse_grad_compression(const std::string& name);
std::vector<std::string> grad_compression_names();
std::string to_string(GradCompression compression);

/// What changes the parameters after steps that each rank made by itself.
enum class OuterOptimizer {
  kAverage,   ///< the mean of the ranks: local SGD
  kNesterov,  ///< SGD with Nesterov's momentum: DiLoCo
};

/// "average", "nesterov"; throws InvalidArgument with the nearest.
OuterOptimizer parse_outer_optimizer(const std::string& name);
std::vector<std::string> outer_optimizer_names();
std::string to_string(OuterOptimizer optimizer);

/// What the ranks of a run send each other, where the links between them are
/// slow. Other settings than these give the bits of one device; these do not.
struct CommunicationOptions {
  GradCompression compression = GradCompression::kNone;
  int64_t powersgd_rank = 4;
  /// Steps that each rank makes by itself, with its part of each batch, before
  /// the ranks bring their parameters together (OuterStep); 0: they sum their
  /// gradients in every step.
  int64_t local_steps = 0;
  OuterOptimizer outer_optimizer = OuterOptimizer::kNesterov;
  /// Default: 0.7 for kNesterov, 1 for kAverage.
  std::optional<double> outer_lr;
  double outer_momentum = 0.9;  ///< kNesterov

  bool is_local() const { return local_steps > 0; }
};

/// Throws InvalidArgument for numbers that can't be.
void check(const CommunicationOptions& options);

}  // namespace lockstep::train
