#include "lockstep/tools/measurement/operator_recording.h"

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/worker.h"

namespace lockstep {
namespace {

using Names = std::vector<std::string>;

// Returns the names of the operators of `kind`, in the order of their ends.
Names names_of(const OperatorLog& log, OperatorKind kind) {
  Names names;
  for (const auto& op : log.operators) {
    if (op.kind == kind) names.push_back(op.name);
  }
  return names;
}

template <class F>
OperatorLog record(const F& work) {
  OperatorRecording recording;
  work();
  return recording.take();
}

TEST(OperatorRecording, ClassifiesKernels) {
  const auto x = torch::ones({4, 3});
  const auto log = record([&] {
    const auto product = torch::mm(x, x.t());
    const auto wide = product.to(torch::kDouble);
    const auto copy = wide.clone();
    copy.copy_(wide);
    copy.copy_(product);
    torch::relu(copy).sum();
  });
  EXPECT_EQ(names_of(log, OperatorKind::kMatrix), Names{"aten::mm"});
  EXPECT_EQ(names_of(log, OperatorKind::kCast),
            (Names{"aten::_to_copy", "aten::copy_"}));
  EXPECT_EQ(names_of(log, OperatorKind::kCopy),
            (Names{"aten::clone", "aten::copy_"}));
  EXPECT_EQ(names_of(log, OperatorKind::kElementwise),
            (Names{"aten::relu", "aten::sum"}));
  // The view, and the operator that calls _to_copy.
  const Names none = names_of(log, OperatorKind::kNone);
  EXPECT_EQ(std::ranges::count(none, "aten::t"), 1);
  EXPECT_EQ(std::ranges::count(none, "aten::to"), 1);
}

TEST(OperatorRecording, LeavesOutWhatAKernelCalls) {
  const auto x = torch::ones({1, 2, 5, 5});
  const auto w = torch::ones({3, 2, 3, 3});
  const auto log = record([&] { torch::conv2d(x, w); });
  // convolution() calls others, such as mkldnn_convolution() and empty().
  const Names expected{"aten::convolution", "aten::conv2d"};
  Names all;
  for (const auto& op : log.operators) all.push_back(op.name);
  EXPECT_EQ(all, expected);
  ASSERT_EQ(log.matrix_calls.size(), 1u);
  const auto& conv = log.operators.front();
  const auto& caller = log.operators.back();
  EXPECT_LE(caller.begin_ns, conv.begin_ns);
  EXPECT_LE(conv.entered_ns, conv.begin_ns);
  EXPECT_LE(conv.begin_ns, conv.end_ns);
  EXPECT_LE(conv.end_ns, conv.left_ns);
  EXPECT_LE(conv.end_ns, caller.end_ns);
}

TEST(OperatorRecording, SeesTheProductsOfABackward) {
  torch::nn::Sequential net(torch::nn::Linear(5, 4), torch::nn::ReLU(),
                            torch::nn::Linear(4, 3));
  const auto x = torch::ones({2, 5});
  const auto log = record([&] { net->forward(x).sum().backward(); });
  // Two forward. Backward, a gradient of each weight and one of an input.
  EXPECT_EQ(log.matrix_calls.size(), 5u);
  EXPECT_EQ(names_of(log, OperatorKind::kMatrix).size(), 5u);
  const MatrixCall& first = log.matrix_calls.front();
  EXPECT_EQ(first.name.name, "aten::addmm");
  ASSERT_GE(first.tensors.size(), 3u);
  EXPECT_EQ(first.tensors[1].second.sizes, (std::vector<int64_t>{2, 5}));
  // The weight, transposed.
  const TensorLayout& weight = first.tensors[2].second;
  EXPECT_EQ(weight.sizes, (std::vector<int64_t>{5, 4}));
  EXPECT_EQ(weight.strides, (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(weight.storage, net->parameters()[0].storage().data());
  EXPECT_TRUE(first.arguments[2].isNone());
}

TEST(OperatorRecording, CountsTheCastsOfAutocastAsCasts) {
  torch::nn::Linear linear(5, 4);
  const auto x = torch::ones({2, 5});
  const auto log = record([&] {
    const AutocastScope precision(c10::kCPU, c10::kBFloat16);
    linear->forward(x);
  });
  ASSERT_EQ(log.matrix_calls.size(), 1u);
  for (const auto& [index, layout] : log.matrix_calls.front().tensors) {
    EXPECT_EQ(layout.type, c10::kBFloat16) << index;
  }
  // Input, weight and bias.
  EXPECT_EQ(names_of(log, OperatorKind::kCast).size(), 3u);
}

TEST(OperatorRecording, KnowsTheDeviceOfEachThread) {
  const auto slices =
      devices("2xcpu", Duplicates::kRefuse, Oversubscription::kAllow);
  Worker worker(slices[1]);
  const auto x = torch::ones({4, 4});
  const auto log = record([&] {
    torch::mm(x, x);
    worker.start([&] { torch::bmm(x.unsqueeze(0), x.unsqueeze(0)); });
    worker.wait();
  });
  ASSERT_EQ(log.matrix_calls.size(), 2u);
  for (const auto& op : log.operators) {
    if (op.name == "aten::mm") {
      EXPECT_EQ(op.thread, std::this_thread::get_id());
      EXPECT_EQ(op.device, current_device());
    } else {
      EXPECT_NE(op.thread, std::this_thread::get_id());
      EXPECT_EQ(op.device, slices[1]);
    }
  }
}

TEST(OperatorRecording, RecordsNothingOutside) {
  const auto x = torch::ones({4, 4});
  OperatorRecording recording;
  EXPECT_THROW(OperatorRecording(), InvalidArgument);
  torch::mm(x, x);
  EXPECT_EQ(recording.take().operators.size(), 1u);
  EXPECT_TRUE(recording.take().operators.empty());
}

}  // namespace
}  // namespace lockstep
