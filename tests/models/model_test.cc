#include "lockstep/models/model.h"

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::models {
namespace {

std::string message_for(const ModelSpec& spec) {
  try {
    make(spec);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Returns a model that is small enough to run in a moment.
ModelSpec small(const std::string& name) {
  return {.name = name, .in_features = 48, .width = 16, .depth = 2};
}

torch::Tensor input_for(const std::string& name) {
  return name == "mlp" ? torch::randn({4, 3, 4, 4})
                       : torch::randn({4, 3, 16, 16});
}

class EveryModel : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Models, EveryModel, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

TEST_P(EveryModel, GivesLogits) {
  const auto model = make(small(GetParam()));
  const auto y = model->forward(input_for(GetParam()));
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{4, 10}));
  EXPECT_TRUE(y.isfinite().all().item<bool>());
}

TEST_P(EveryModel, SendsAGradientToEveryParameter) {
  const auto model = make(small(GetParam()));
  model->forward(input_for(GetParam())).square().sum().backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<float>(), 0) << item.key();
  }
}

TEST_P(EveryModel, LeavesItsInputAsItWas) {
  const auto model = make(small(GetParam()));
  const auto x = input_for(GetParam());
  const auto before = x.clone();
  model->forward(x);
  EXPECT_TRUE(x.equal(before));
}

TEST_P(EveryModel, StartsTheSameForTheSameSeed) {
  torch::manual_seed(3);
  const auto first = make(small(GetParam()))->parameters();
  torch::manual_seed(3);
  const auto second = make(small(GetParam()))->parameters();
  torch::manual_seed(4);
  const auto other = make(small(GetParam()))->parameters();
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(first[i].equal(second[i]));
  }
  EXPECT_FALSE(first[0].equal(other[0]));
}

TEST_P(EveryModel, WithoutInitialisationIsTheSameButForTheValues) {
  const auto random = make(small(GetParam()));
  const auto none = make(small(GetParam()), Init::kNone);
  const auto expected = random->named_parameters();
  const auto got = none->named_parameters();
  ASSERT_EQ(got.keys(), expected.keys());
  for (const auto& item : expected) {
    EXPECT_EQ(got[item.key()].sizes(), item.value().sizes()) << item.key();
    EXPECT_TRUE(got[item.key()].is_contiguous()) << item.key();
    EXPECT_TRUE(got[item.key()].requires_grad()) << item.key();
  }
  EXPECT_EQ(none->named_buffers().keys(), random->named_buffers().keys());
  // It must also work the same way.
  const torch::NoGradGuard no_grad;
  for (const auto& item : expected) got[item.key()].copy_(item.value());
  const auto x = input_for(GetParam());
  EXPECT_TRUE(none->forward(x).equal(random->forward(x)));
  std::ostringstream shown, expected_shown;
  shown << *none;
  expected_shown << *random;
  EXPECT_EQ(shown.str(), expected_shown.str());
}

TEST_P(EveryModel, WithoutInitialisationDrawsNoRandomNumber) {
  torch::manual_seed(5);
  const auto expected = torch::rand({4});
  torch::manual_seed(5);
  make(small(GetParam()), Init::kNone);
  EXPECT_TRUE(torch::rand({4}).equal(expected));
}

TEST_P(EveryModel, IsClonedWithAllItsState) {
  const auto model = make(small(GetParam()));
  model->forward(input_for(GetParam()));  // updates the running statistics
  model->children().front()->eval();
  model->parameters().front().set_requires_grad(false);
  model->to(torch::kFloat64);

  const auto copy = std::dynamic_pointer_cast<Model>(model->clone());
  ASSERT_TRUE(copy);
  EXPECT_TRUE(copy->is_training());
  EXPECT_FALSE(copy->children().front()->is_training());
  EXPECT_FALSE(copy->parameters().front().requires_grad());
  EXPECT_TRUE(copy->parameters().back().requires_grad());
  const auto check = [](const auto& from, const auto& to) {
    ASSERT_EQ(from.keys(), to.keys());
    for (const auto& item : from) {
      EXPECT_TRUE(to[item.key()].equal(item.value())) << item.key();
      EXPECT_NE(to[item.key()].data_ptr(), item.value().data_ptr())
          << item.key();
    }
  };
  check(model->named_parameters(), copy->named_parameters());
  check(model->named_buffers(), copy->named_buffers());
}

TEST(Make, SuggestsTheNearestName) {
  EXPECT_EQ(message_for({.name = "resnet81"}),
            "[models] there is no model 'resnet81'; did you mean 'resnet18'? "
            "Known are cnn, mlp, resnet18, resnet34 [unknown-name]");
  EXPECT_EQ(message_for({.name = "transformer"}),
            "[models] there is no model 'transformer'; known are cnn, mlp, "
            "resnet18, resnet34 [unknown-name]");
}

TEST(Make, RefusesASizeBelowOne) {
  EXPECT_EQ(message_for({.name = "resnet34", .classes = 0}),
            "[models] can't build resnet34: classes is out of range; expected "
            "at least 1, got 0 [bad-option]");
  EXPECT_THROW(make({.name = "mlp", .in_features = 0}), InvalidArgument);
  EXPECT_THROW(make({.name = "mlp", .width = -1}), InvalidArgument);
  EXPECT_THROW(make({.name = "mlp", .depth = 0}), InvalidArgument);
  // The sizes of the mlp don't matter to a resnet.
  EXPECT_NO_THROW(make({.name = "resnet18", .width = 0}, Init::kNone));
}

TEST(CountParameters, AgreesWithTheLiterature) {
  const auto count = [](const ModelSpec& spec) {
    return count_parameters(*make(spec, Init::kNone));
  };
  // torchvision gives these numbers for 1000 classes.
  const Stem stem = Stem::kImageNet;
  EXPECT_EQ(count({.name = "resnet18", .classes = 1000, .stem = stem}),
            11'689'512);
  EXPECT_EQ(count({.name = "resnet34", .classes = 1000, .stem = stem}),
            21'797'672);
  // 9 x (3 x 32 + 32 x 64 + 64 x 128), 2 x (32 + 64 + 128), 128 x 10 + 10
  EXPECT_EQ(count({.name = "cnn"}), 94'762);
  // 6 x (1024 x 1024 + 1024) + 1024 x 10 + 10
  EXPECT_EQ(count({.name = "mlp"}), 6'307'850);
}

}  // namespace
}  // namespace lockstep::models
