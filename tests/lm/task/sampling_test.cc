
#include <cmath>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/lm/task/generate.h"
#include "tests/base/error_code_of.h"

namespace lockstep::tasks {
namespace {

using data::RandomStream;
using data::StreamUse;

std::map<int64_t, double> frequencies(const torch::Tensor& logits,
                                      const SamplingOptions& options) {
  constexpr int kDraws = 20000;
  RandomStream random(StreamUse::kSampling, {1});
  std::map<int64_t, double> found;
  for (int i = 0; i < kDraws; ++i) {
    found[sample(logits, options, random)] += 1.0 / kDraws;
  }
  return found;
}

// With 20,000 draws, it is off by 0.01 less than once in a thousand runs.
TEST(Sampling, FollowsTheSoftmax) {
  const auto logits = torch::tensor({0.0, 1.0, 2.0});
  const auto expected = torch::softmax(logits, 0);
  const auto found = frequencies(logits, {});
  for (int64_t id = 0; id < 3; ++id) {
    EXPECT_NEAR(found.at(id), expected[id].item<double>(), 0.012) << id;
  }
  const auto cold = torch::softmax(logits / 0.5, 0);
  EXPECT_NEAR(frequencies(logits, {.temperature = 0.5}).at(2),
              cold[2].item<double>(), 0.012);
}

TEST(Sampling, TakesTheLikeliestAtTemperatureZero) {
  const auto found =
      frequencies(torch::tensor({0.5, 3.0, 3.0, -1.0}), {.temperature = 0});
  EXPECT_EQ(found.size(), 1u);
  EXPECT_EQ(found.begin()->first, 1);
}

TEST(Sampling, KeepsTheLikeliestTokens) {
  const auto logits = torch::log(torch::tensor({0.1, 0.4, 0.2, 0.3}));
  const auto ids = [&](const SamplingOptions& options) {
    std::vector<int64_t> all;
    for (const auto& [id, part] : frequencies(logits, options)) {
      all.push_back(id);
    }
    return all;
  };
  EXPECT_EQ(ids({.top_k = 1}), (std::vector<int64_t>{1}));
  EXPECT_EQ(ids({.top_k = 2}), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(ids({.top_k = 9}), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(ids({.top_p = 0.3}), (std::vector<int64_t>{1}));
  EXPECT_EQ(ids({.top_p = 0.65}), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(ids({.top_p = 0.85}), (std::vector<int64_t>{1, 2, 3}));
}

TEST(Sampling, RefusesWhatCanNotBe) {
  const auto refused = [](const SamplingOptions& options) {
    return error_code_of([&] { check(options); });
  };
  EXPECT_EQ(refused({.temperature = -1}), ErrorCode::kBadOption);
  EXPECT_EQ(refused({.temperature = NAN}), ErrorCode::kBadOption);
  EXPECT_EQ(refused({.top_k = -1}), ErrorCode::kBadOption);
  EXPECT_EQ(refused({.top_p = 0}), ErrorCode::kBadOption);
  EXPECT_EQ(refused({.top_p = 1.1}), ErrorCode::kBadOption);
  RandomStream random(StreamUse::kSampling, {1});
  EXPECT_EQ(error_code_of([&] {
              sample(torch::tensor({1.0, std::nan("")}), {}, random);
            }),
            ErrorCode::kBadTensor);
}

// Also beyond the context, and always the likeliest token, with and without the
// cache.
TEST(Generate, ContinuesAPrompt) {
  auto spec = models::language_spec("gpt-nano");
  spec.context = 8;
  torch::manual_seed(2);
  const auto model = models::make_language_model(spec);
  const auto run = [&](uint64_t seed, double temperature) {
    std::vector<int64_t> tokens;
    generate(*model, {1, 2, 3},
             {.max_tokens = 30,
              .sampling = {.temperature = temperature},
              .seed = seed},
             [&](int64_t token) {
               tokens.push_back(token);
               return true;
             });
    return tokens;
  };
  EXPECT_EQ(run(1, 1).size(), 30u);
  EXPECT_EQ(run(1, 1), run(1, 1));
  EXPECT_NE(run(1, 1), run(2, 1));
  EXPECT_TRUE(model->is_training());
  // The first five fit into the context. Each is the likeliest one after all
  // tokens before it.
  const auto greedy = run(1, 0);
  std::vector<int64_t> before{1, 2, 3};
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < 5; ++i) {
    const auto logits =
        model->forward(torch::tensor(before, torch::kInt64).unsqueeze(0));
    EXPECT_EQ(greedy[i], logits[0][-1].argmax().item<int64_t>());
    before.push_back(greedy[i]);
  }
}

TEST(Generate, EndsWhenItIsTold) {
  const auto model =
      models::make_language_model(models::language_spec("gpt-nano"));
  int64_t count = 0;
  generate(*model, {1}, {.max_tokens = 30},
           [&](int64_t) { return ++count < 4; });
  EXPECT_EQ(count, 4);
  int64_t first = -1;
  generate(*model, {1}, {.max_tokens = 1}, [&](int64_t token) {
    first = token;
    return true;
  });
  count = 0;
  generate(*model, {1}, {.max_tokens = 30, .end = first}, [&](int64_t) {
    ++count;
    return true;
  });
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace lockstep::tasks
