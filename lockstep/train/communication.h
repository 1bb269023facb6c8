#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::train {

/// The form in which ranks send gradients.
enum class GradCompression {
  kNone,
  kBFloat16,  ///< rounded; half the bytes
  kFloat16,   ///< rounded; half the bytes
  kPowerSgd,  ///< a product of two matrices of a low rank (PowerSGD)
};

/// Parses "none", "bf16", "fp16" or "powersgd". Throws InvalidArgument, which
/// names the nearest.
GradCompression parse_grad_compression(const std::string& name);
std::vector<std::string> grad_compression_names();
std::string to_string(GradCompression compression);

/// The optimizer that changes the parameters after steps that each rank made by
/// itself.
enum class OuterOptimizer {
  kAverage,   ///< the mean of the ranks: local SGD
  kNesterov,  ///< SGD with Nesterov's momentum: DiLoCo
};

/// Parses "average" or "nesterov". Throws InvalidArgument, which names the
/// nearest.
OuterOptimizer parse_outer_optimizer(const std::string& name);
std::vector<std::string> outer_optimizer_names();
std::string to_string(OuterOptimizer optimizer);

/// Options for ranks that are connected by slow links. With the defaults a run
/// has the bits of one device; with other values it does not.
struct CommunicationOptions {
  GradCompression compression = GradCompression::kNone;
  int64_t powersgd_rank = 4;
  /// Steps that each rank makes by itself, with its part of each batch, before
  /// the ranks combine their parameters (OuterStep). 0: they sum their
  /// gradients in every step.
  int64_t local_steps = 0;
  OuterOptimizer outer_optimizer = OuterOptimizer::kNesterov;
  /// Default: 0.7 for kNesterov, 1 for kAverage.
  std::optional<double> outer_lr;
  double outer_momentum = 0.9;  ///< kNesterov

  bool is_local() const { return local_steps > 0; }
};

/// Throws InvalidArgument for numbers out of range.
void check(const CommunicationOptions& options);

}  // namespace lockstep::train
