#include "lockstep/models/model_settings.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/expect_problem.h"

namespace lockstep::models {
namespace {

TEST(ModelSettings, DescribeAModelThatIsTheSame) {
  const ModelSpec spec{.name = "resnet34",
                       .classes = 7,
                       .stem = Stem::kImageNet,
                       .channels = 1,
                       .in_features = 5,
                       .width = 6,
                       .depth = 3};
  const ModelSpec read = spec_from_settings(to_settings(spec));
  EXPECT_EQ(read.name, "resnet34");
  EXPECT_EQ(read.classes, 7);
  EXPECT_EQ(read.stem, Stem::kImageNet);
  EXPECT_EQ(read.channels, 1);
  EXPECT_EQ(read.in_features, 5);
  EXPECT_EQ(read.width, 6);
  EXPECT_EQ(read.depth, 3);
}

TEST(ModelSettings, WithoutChannelsAreOfColourImages) {
  const auto settings = to_settings({.name = "cnn"});
  EXPECT_FALSE(settings.contains("channels"));
  EXPECT_EQ(spec_from_settings(settings).channels, 3);
}

TEST(ModelSettings, RefuseWhatNoModelHas) {
  for (const char* key :
       {"name", "classes", "stem", "in_features", "width", "depth"}) {
    auto settings = to_settings({});
    settings.erase(key);
    expect_problem(
        error_of<InvalidArgument>([&] { spec_from_settings(settings); }),
        ErrorCode::kBadOption, {key});
  }
  for (const char* size :
       {"", "-1", "8x", " 8", "16777217", "1e3", "99999999999999999999"}) {
    auto settings = to_settings({});
    settings["width"] = size;
    expect_problem(
        error_of<InvalidArgument>([&] { spec_from_settings(settings); }),
        ErrorCode::kBadOption, {"width", size});
  }
  auto settings = to_settings({});
  settings["stem"] = "flower";
  expect_problem(
      error_of<InvalidArgument>([&] { spec_from_settings(settings); }),
      ErrorCode::kBadOption, {"flower"});
}

}  // namespace
}  // namespace lockstep::models
