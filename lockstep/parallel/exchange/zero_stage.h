#pragma once

namespace lockstep {

/// What is cut over ranks that share no memory, so that each has a part of it:
/// the stages of ZeRO (Rajbhandari et al., 2020, arXiv 1910.02054). The bits of
/// a run are the same at each stage. Ranks that share memory hold all of it
/// once in any case.
///
/// With N ranks, float32 and Adam, a rank holds for each parameter 16 bytes at
/// stage 0, 8 + 8/N at stage 1, 4 + 12/N at stage 2.
enum class ZeroStage {
  kNone,
  kOptimizerState,
  kGradients,  ///< and the optimizer's state
};

}  // namespace lockstep
