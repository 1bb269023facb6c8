#pragma once

#include <string>

namespace lockstep::differential {

/// The category of a refusal that is a warning: wrong numbers were trained
/// after the first step said that it could not check the module or the loss.
inline constexpr auto kWarned = "a warning: the first step can't check it";

/// Result of checking a case.
struct Verdict {
  enum class Kind {
    kPassed,
    kPlainFailed,  ///< plain LibTorch throws, too
    kRefused,      ///< an exception that is expected, and names its cause
    kFinding,
  };
  Kind kind = Kind::kPassed;
  /// For a refusal, its cause. For a finding: difference (from plain LibTorch),
  /// bits (of two strategies), error, crash or hang. If one rank differs and no
  /// error says so: silence.
  std::string category{};
  std::string detail{};

  bool is_finding() const { return kind == Kind::kFinding; }
};

}  // namespace lockstep::differential
