#include "lockstep/base/env.h"

#include <stdlib.h>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

constexpr const char* kName = "LOCKSTEP_TEST_VARIABLE";

class Env : public testing::Test {
 protected:
  void set(const char* value) { ::setenv(kName, value, 1); }
  void TearDown() override { ::unsetenv(kName); }
};

TEST_F(Env, IsNothingWhenUnsetOrEmpty) {
  EXPECT_FALSE(env(kName));
  set("");
  EXPECT_FALSE(env(kName));
  EXPECT_FALSE(env_integer(kName));
  EXPECT_FALSE(env_flag(kName));
  set(" a ");
  EXPECT_EQ(env(kName), " a ");
}

TEST_F(Env, ReadsWholeNumbers) {
  set("-12");
  EXPECT_EQ(env_integer(kName), -12);
  for (const char* wrong :
       {"12a", "1.5", "0x10", " 1", "9999999999999999999"}) {
    set(wrong);
    EXPECT_THROW(env_integer(kName), InvalidArgument) << wrong;
  }
}

TEST_F(Env, NamesTheVariableAndItsRange) {
  set("0");
  EXPECT_EQ(error_of<InvalidArgument>([] { env_integer(kName, 1, 64); }),
            "[env] can't use the variable LOCKSTEP_TEST_VARIABLE; expected a "
            "whole number from 1 up to 64, got '0'; correct it or unset it "
            "[bad-variable]");
  set("64");
  EXPECT_EQ(env_integer(kName, 1, 64), 64);
}

TEST_F(Env, ReadsSwitches) {
  set("yes");
  EXPECT_EQ(env_flag(kName), true);
  set("0");
  EXPECT_EQ(env_flag(kName), false);
  set("maybe");
  EXPECT_TRUE(is_error(error_of<InvalidArgument>([] { env_flag(kName); }),
                       ErrorCode::kBadVariable, {kName, "'maybe'"}));
}

}  // namespace
}  // namespace lockstep
