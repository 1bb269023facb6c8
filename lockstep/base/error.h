#pragma once

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/base/error_code.h"  // IWYU pragma: export
#include "lockstep/base/exit_code.h"   // IWYU pragma: export

namespace lockstep {

/// An ErrorCode without a default, so that it can't be forgotten.
struct RequiredErrorCode {
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr RequiredErrorCode(ErrorCode code) : value(code) {}
  ErrorCode value;
};

/// The code of an error and the parts of its message. Empty parts are left out.
struct Problem {
  RequiredErrorCode code;
  std::string what;
  std::string expected{};
  std::string got{};
  std::string fix{};
};

/// Base of every exception that Lockstep throws. Its message reads
/// `[component] what; expected X, got Y; fix [code]`.
class Error : public std::runtime_error {
 public:
  Error(std::string_view component, const Problem& problem);
  ErrorCode code() const noexcept { return code_; }
  /// Returns the message without its component and code.
  std::string_view text() const noexcept;

 private:
  ErrorCode code_;
  size_t text_begin_ = 0;
  size_t text_size_ = 0;
};

/// Returns the text of `error` for use in the message of an error that it
/// causes. That error has its own component and code. The name that a library
/// puts before its text is left out.
std::string text_of(const std::exception& error);

/// A bad option, shape or value that the caller passed. A program that was
/// started from the command line exits with kExitBadUsage (2).
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A device that does not exist, is named twice, or failed.
class DeviceError : public Error {
 public:
  explicit DeviceError(const Problem& problem) : Error("device", problem) {}
};

/// A dataset that is missing, truncated or malformed.
class DataError : public Error {
 public:
  explicit DataError(const Problem& problem) : Error("data", problem) {}
};

/// A checkpoint that can't be written, read or loaded into this model.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const Problem& problem)
      : Error("checkpoint", problem) {}
};

/// A file or folder that can't be read or written.
class IoError : public Error {
 public:
  explicit IoError(const Problem& problem) : Error("io", problem) {}
};

/// A rank that died, stalled, left or made a different call, or a store or
/// backend that can't be reached.
class CommError : public Error {
 public:
  explicit CommError(const Problem& problem) : Error("comm", problem) {}
};

/// A failure after which training can't go on, such as a loss that is not
/// finite. A program that was started from the command line exits with
/// kExitTrainingFailed (70).
class TrainError : public Error {
 public:
  explicit TrainError(const Problem& problem) : Error("train", problem) {}

 protected:
  TrainError(std::string_view component, const Problem& problem)
      : Error(component, problem) {}
};

/// A failure after which data-parallel training would compute wrong numbers.
/// The module, the loss, a hook or the calls of the ranks broke a rule while it
/// ran: parameters without a gradient, ranks that differ, a loss that is not a
/// mean.
class ParallelError : public TrainError {
 public:
  ParallelError(std::string_view component, const Problem& problem)
      : TrainError(component, problem) {}
};

/// Workers that can't be started, or agents that can't find each other.
class LaunchError : public Error {
 public:
  explicit LaunchError(const Problem& problem) : Error("launch", problem) {}
};

}  // namespace lockstep
