#include <cstdint>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/device/aligned_tensor.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/engine.h"
#include "tests/parallel/nets.h"

// A chunk of a batch starts anywhere in it. The bits of a shard must not depend
// on where: a rank has the chunk only.
namespace lockstep::aligned_chunks_test {
namespace {

using testing_nets::slices;
using torch::Tensor;

struct Layout {
  std::uintptr_t offset;
  std::vector<int64_t> strides;
  bool operator==(const Layout&) const = default;
};

Layout layout_of(const Tensor& tensor) {
  return {reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64,
          tensor.strides().vec()};
}

/// Notes how the inputs of its replicas lie in memory.
struct NotingImpl : torch::nn::Cloneable<NotingImpl> {
  NotingImpl() { reset(); }
  void reset() override { fc = register_module("fc", torch::nn::Linear(9, 3)); }
  Tensor forward(const Tensor& x) {
    note(x);
    return fc(x);
  }
  static void note(const Tensor& tensor) {
    const std::lock_guard lock(mutex);
    layouts.push_back(layout_of(tensor));
  }
  static std::vector<Layout> take() { return std::exchange(layouts, {}); }

  torch::nn::Linear fc{nullptr};
  static inline std::mutex mutex;
  static inline std::vector<Layout> layouts;
};

Tensor noted_loss(const Tensor& output, const Tensor& target) {
  NotingImpl::note(target);
  return torch::mse_loss(output, target);
}

/// Adds to its input.
struct AddingImpl : torch::nn::Cloneable<AddingImpl> {
  AddingImpl() { reset(); }
  void reset() override { fc = register_module("fc", torch::nn::Linear(9, 3)); }
  Tensor forward(Tensor x) { return fc(x.add_(1)); }
  torch::nn::Linear fc{nullptr};
};

TEST(AlignedChunks, AreGivenToEveryShard) {
  const auto net = std::make_shared<NotingImpl>();
  const DataParallel model(net, slices(3),
                           DataParallelOptions().verify(Verify::kFirst));
  const std::vector<int64_t> input_strides{9, 1}, target_strides{3, 1};
  const auto expect_aligned = [&] {
    const auto layouts = NotingImpl::take();
    EXPECT_GE(layouts.size(), 3U);
    for (const Layout& layout : layouts) {
      EXPECT_EQ(layout.offset, 0U);
      EXPECT_TRUE(layout.strides == input_strides ||
                  layout.strides == target_strides)
          << layout.strides;
    }
  };
  const Tensor x = torch::randn({9, 9}), y = torch::randn({9, 3});
  // The first step checks the loss with single samples, wherever they lie.
  model->train_step(x, y, noted_loss);
  NotingImpl::take();
  model->forward(x).sum().backward();
  expect_aligned();
  model->train_step(x, y, noted_loss);
  expect_aligned();
  Engine engine(engine_module<NotingImpl>(net, detail::cloner_of(net)),
                slices(3), DataParallelOptions());
  engine.evaluate({x}, y, 9, [](const c10::IValue&, const c10::IValue& target) {
    NotingImpl::note(target.toTensor());
  });
  expect_aligned();
}

TEST(AlignedChunks, AreDenseAlongEveryDimension) {
  const auto net = std::make_shared<NotingImpl>();
  const DataParallel model(net, slices(2), DataParallelOptions().dim(1));
  model->forward(torch::randn({5, 8, 9}));
  // As in a rank that has 4 of the 8 samples only.
  for (const Layout& layout : NotingImpl::take()) {
    EXPECT_EQ(layout.strides, (std::vector<int64_t>{36, 9, 1}));
  }
}

TEST(AlignedChunks, PassOnWhatAForwardWritesToThem) {
  for (const int k : {1, 2, 3}) {
    const auto net = std::make_shared<AddingImpl>();
    const DataParallel model(net, slices(k));
    Tensor all = torch::randn({10, 9});
    const Tensor before = all.clone();
    Tensor x = all.narrow(0, 1, 9);
    model->train_step(x, torch::zeros({9, 3}), noted_loss);
    EXPECT_TRUE(x.equal(before.narrow(0, 1, 9) + 1)) << k << " slices";
    EXPECT_TRUE(all[0].equal(before[0]));
    // A graph that saved the batch before must notice.
    Tensor w = torch::ones({10, 9}, torch::requires_grad());
    const Tensor product = (w * all).sum();
    model->forward(x);
    EXPECT_ANY_THROW(product.backward());
  }
}

TEST(AlignedChunks, AreNotCopiedIfTheyLieWell) {
  const Tensor x = torch::randn({8, 16});
  EXPECT_TRUE(aligned(x).is_same(x));
  const Tensor part = x.narrow(0, 4, 4);
  EXPECT_TRUE(aligned(part).is_same(part));
  const Tensor off = x.flatten().narrow(0, 1, 16);
  EXPECT_FALSE(aligned(off).is_alias_of(off));
  EXPECT_TRUE(aligned(off).equal(off));
  const Tensor image =
      torch::randn({6, 3, 5, 5}).contiguous(torch::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(aligned(image.narrow(0, 1, 2))
                  .is_contiguous(torch::MemoryFormat::ChannelsLast));
}

}  // namespace
}  // namespace lockstep::aligned_chunks_test
