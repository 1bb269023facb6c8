#include "lockstep/base/exit_code.h"

#include <stdexcept>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

const Problem kProblem{.code = ErrorCode::kBadOption, .what = "x"};

// Returns the exit code of a program that fails with an exception from `act`.
int exit_code_caused_by(void (*act)()) {
  struct Wrapper : std::runtime_error, std::nested_exception {
    Wrapper() : std::runtime_error("wrapped") {}
  };
  try {
    try {
      act();
    } catch (...) {
      throw Wrapper();
    }
  } catch (const std::exception& error) {
    return exit_code_of(error);
  }
  return -1;
}

TEST(ExitCode, IsBadUsageForAnInvalidArgumentOnly) {
  EXPECT_EQ(exit_code_of(InvalidArgument("cli", kProblem)), 2);
  EXPECT_EQ(exit_code_of(CommError(kProblem)), 1);
  EXPECT_EQ(exit_code_of(IoError(kProblem)), 1);
  EXPECT_EQ(exit_code_of(std::runtime_error("x")), 1);
}

TEST(ExitCode, TellsThatTrainingCannotGoOn) {
  EXPECT_EQ(exit_code_of(TrainError(kProblem)), 70);
  EXPECT_EQ(exit_code_of(ParallelError("ddp", kProblem)), 70);
}

TEST(ExitCode, OfAnErrorWithACauseIsThatOfTheCauseIfTrainingFailed) {
  EXPECT_EQ(exit_code_caused_by([] { throw ParallelError("ddp", kProblem); }),
            70);
  EXPECT_EQ(exit_code_caused_by([] { throw std::bad_alloc(); }), 1);
  // The caller typed nothing wrong. A module was given a wrong shape.
  EXPECT_EQ(exit_code_caused_by([] { throw InvalidArgument("x", kProblem); }),
            1);
}

}  // namespace
}  // namespace lockstep
