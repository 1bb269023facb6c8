#pragma once

namespace lockstep {

/// The data that is partitioned over ranks that share no memory: the stages of
/// ZeRO (Rajbhandari et al., 2020, arXiv 1910.02054). A run has the same bits
/// at each stage. Ranks that share memory always hold only one copy of all of
/// it.
///
/// With N ranks, float32 and Adam, a rank holds 16 bytes per parameter at stage
/// 0, 8 + 8/N at stage 1, and 4 + 12/N at stage 2.
enum class ZeroStage {
  kNone,
  kOptimizerState,
  kGradients,  ///< and the optimizer's state
};

}  // namespace lockstep
