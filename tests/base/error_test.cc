#include "lockstep/base/error.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <type_traits>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr auto kCode = ErrorCode::kMalformedData;

TEST(Error, SaysWhatWasExpectedAndFound) {
  const DataError error({.code = kCode,
                         .what = "a.bin is truncated",
                         .expected = "30730000 bytes",
                         .got = "100",
                         .fix = "fetch it again"});
  EXPECT_STREQ(error.what(),
               "[data] a.bin is truncated; expected 30730000 bytes, got 100; "
               "fetch it again [malformed-data]");
}

TEST(Error, LeavesOutWhatIsEmpty) {
  const auto text = [](const Problem& problem) {
    return std::string(IoError(problem).what());
  };
  EXPECT_EQ(text({.code = kCode, .what = "x"}), "[io] x [malformed-data]");
  EXPECT_EQ(text({.code = kCode, .what = "x", .got = "y"}),
            "[io] x; got y [malformed-data]");
  EXPECT_EQ(text({.code = kCode, .what = "x", .expected = "y"}),
            "[io] x; expected y [malformed-data]");
  EXPECT_EQ(text({.code = kCode, .what = "x", .fix = "z"}),
            "[io] x; z [malformed-data]");
}

TEST(Error, IsCaughtByItsBaseWhichHasTheCode) {
  try {
    throw InvalidArgument("cli", {.code = ErrorCode::kBadOption, .what = "x"});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadOption);
  }
  EXPECT_THROW(throw TrainError({.code = ErrorCode::kNotFinite, .what = "x"}),
               std::runtime_error);
}

TEST(Error, GivesItsTextToAnErrorThatItCauses) {
  const DataError cause(
      {.code = kCode, .what = "a is short", .fix = "fetch it"});
  EXPECT_EQ(cause.text(), "a is short; fetch it");
  EXPECT_EQ(IoError({.code = kCode, .what = "x"}).text(), "x");
  EXPECT_EQ(text_of(cause), "a is short; fetch it");
  EXPECT_EQ(text_of(std::runtime_error("not ours")), "not ours");
  // Without the words of the libraries.
  EXPECT_EQ(text_of(std::runtime_error(
                "[json.exception.type_error.302] type must be number")),
            "type must be number");
  const auto denied = std::make_error_code(std::errc::permission_denied);
  EXPECT_EQ(text_of(std::system_error(denied, "std::system_error")),
            "Permission denied");
  EXPECT_EQ(
      text_of(std::filesystem::filesystem_error("cannot open", "a/b", denied)),
      "a/b: Permission denied");
}

TEST(Error, OfParallelTrainingIsNoInvalidArgument) {
  const auto fail = [] {
    throw ParallelError("ddp",
                        {.code = ErrorCode::kUnusedParameters, .what = "x"});
  };
  EXPECT_THROW(fail(), ParallelError);
  EXPECT_THROW(fail(), TrainError);
  static_assert(!std::is_base_of_v<InvalidArgument, ParallelError>);
  try {
    fail();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[ddp] x [unused-parameters]");
  }
}

TEST(ErrorCodes, HaveANameOfTheirOwnInKebabCase) {
  std::set<std::string> names;
  for (const ErrorCode code : all_error_codes()) {
    const std::string name(name_of(code));
    EXPECT_TRUE(names.insert(name).second) << name << " is there twice";
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz-"),
              std::string::npos)
        << name;
  }
  EXPECT_GT(names.size(), 50u);
}

TEST(ErrorCodes, StandInTheDocumentation) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/docs/errors.md");
  std::stringstream stream;
  stream << file.rdbuf();
  const std::string text = stream.str();
  size_t rows = 0;
  for (const ErrorCode code : all_error_codes()) {
    const std::string row = "\n| `" + std::string(name_of(code)) + "` | ";
    EXPECT_NE(text.find(row), std::string::npos) << name_of(code);
  }
  for (size_t at = 0; (at = text.find("\n| `", at)) != std::string::npos;
       ++at) {
    ++rows;
  }
  EXPECT_EQ(rows, all_error_codes().size()) << "a code that is no more";
}

}  // namespace
}  // namespace lockstep
