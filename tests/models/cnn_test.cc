#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/models/model.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::models {
namespace {

TEST(Cnn, NamesItsParametersByLayer) {
  const auto model = make({.name = "cnn"}, Init::kNone);
  EXPECT_EQ(model->named_parameters().keys(),
            (std::vector<std::string>{"conv1.weight", "bn1.weight", "bn1.bias",
                                      "conv2.weight", "bn2.weight", "bn2.bias",
                                      "conv3.weight", "bn3.weight", "bn3.bias",
                                      "fc.weight", "fc.bias"}));
}

TEST(Cnn, TakesImagesOfEverySizeFrom8x8) {
  const auto model = make({.name = "cnn", .classes = 4});
  for (const int64_t side : {8, 15, 32, 64}) {
    EXPECT_EQ(model->forward(torch::randn({2, 3, side, side})).sizes(),
              (std::vector<int64_t>{2, 4}));
  }
}

TEST(Cnn, SaysWhatInputItTakes) {
  const auto model = make({.name = "cnn"}, Init::kNone);
  EXPECT_EQ(error_of<InvalidArgument>([&] {
              model->forward(torch::randn({2, 1, 28, 28}));
            }),
            "[models] cnn can't take this input; expected images (N, 3, "
            "height, width) of 8x8 pixels or more, got (2, 1, 28, 28) "
            "[bad-tensor]");
  EXPECT_THROW(model->forward(torch::randn({2, 3, 8, 7})), InvalidArgument);
  EXPECT_THROW(model->forward(torch::randn({3, 32, 32})), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::models
