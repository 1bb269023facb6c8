#include "lockstep/checkpoint/state_dict.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/device/device.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::state_dict_test {
namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width = 4) {
    conv = register_module("conv", torch::nn::Conv2d(3, width, 3));
    bn = register_module("bn", torch::nn::BatchNorm2d(width));
    fc = register_module("fc", torch::nn::Linear(width, 2));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d bn{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

const std::vector<std::string> kNames{
    "conv.weight",     "conv.bias",      "bn.weight",
    "bn.bias",         "fc.weight",      "fc.bias",
    "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"};

NamedTensors copied(const torch::nn::Module& module,
                    const std::string& prefix = "") {
  NamedTensors result;
  for (const auto& [name, tensor] : state_dict(module)) {
    result.emplace_back(prefix + name, tensor.detach().clone());
  }
  return result;
}

TEST(StateDict, ListsParametersThenBuffersAndSharesThem) {
  Net net;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_dict(*net)) names.push_back(name);
  EXPECT_EQ(names, kNames);
  EXPECT_EQ(state_dict(*net)[0].second.data_ptr(),
            net->conv->weight.data_ptr());
}

/// A module with two names for one parameter.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embedding = register_parameter("embedding", torch::randn({5, 3}));
    head = register_parameter("head", embedding);
  }
  torch::Tensor embedding, head;
};
TORCH_MODULE(Tied);

// safetensors.torch.save_model() writes one of the names.
TEST(StateDict, IsLoadedWithOneOfTheNamesOfATiedTensor) {
  const Tied from;
  for (const auto& item : copied(*from)) {
    Tied to;
    load_state_dict(*to, {item});
    EXPECT_TRUE(to->embedding.equal(from->embedding)) << item.first;
    EXPECT_TRUE(to->head.is_same(to->embedding));
  }
  Tied to;
  expect_problem(error_of<CheckpointError>([&] { load_state_dict(*to, {}); }),
                 ErrorCode::kStateMismatch, {"2 missing: embedding, head"});
}

TEST(StateDict, GoesFromOneModuleToAnotherThroughAFile) {
  const TemporaryFolder folder;
  Net from, to;
  from->bn->running_mean.fill_(7);
  ASSERT_NE(parameter_digest(*from), parameter_digest(*to));
  save(*from, folder.path("net.safetensors"));
  load(*to, folder.path("net.safetensors"));
  EXPECT_EQ(parameter_digest(*from), parameter_digest(*to));
  EXPECT_TRUE(to->fc->weight.requires_grad());
  EXPECT_TRUE(to->fc->weight.equal(from->fc->weight));
}

TEST(StateDict, DropsThePrefixThatWrappersWrite) {
  Net from, to;
  load_state_dict(*to, copied(*from, "module."));
  EXPECT_EQ(parameter_digest(*from), parameter_digest(*to));
}

TEST(StateDict, KeepsThePrefixThatTheModelHasItself) {
  torch::nn::Sequential from, to;
  from->push_back("module", torch::nn::Linear(2, 2));
  to->push_back("module", torch::nn::Linear(2, 2));
  load_state_dict(*to, copied(*from));
  EXPECT_EQ(parameter_digest(*from), parameter_digest(*to));
}

TEST(StateDict, OfAWrapperFitsThePlainModule) {
  const TemporaryFolder folder;
  const std::string path = folder.path("wrapped.safetensors");
  DataParallel wrapped(torch::nn::Linear(3, 2), devices("cpu"));
  torch::nn::Linear plain(3, 2);
  save(*wrapped, path);
  load(*plain, path);
  EXPECT_EQ(parameter_digest(*plain), parameter_digest(*wrapped->module()));
}

TEST(StateDict, SaysHowToLoadAPlainModuleIntoAWrapper) {
  const TemporaryFolder folder;
  const std::string path = folder.path("plain.safetensors");
  DataParallel model(torch::nn::Linear(3, 2), devices("cpu"));
  torch::nn::Linear plain(3, 2);
  save(*plain, path);
  expect_problem(
      error_of<CheckpointError>([&] { load(*model, path); }),
      ErrorCode::kStateMismatch,
      {"2 missing: module.weight, module.bias", "2 unexpected: weight, bias",
       "the names differ only by the \"module.\" that a wrapper adds",
       "lockstep::load(*model->module(), path)"});
  lockstep::load(*model->module(), path);
  EXPECT_EQ(parameter_digest(*plain), parameter_digest(*model->module()));
}

/// A module whose own names begin with "module.".
struct Holder : torch::nn::Cloneable<Holder> {
  Holder() { reset(); }
  void reset() override {
    module = register_module("module", torch::nn::Linear(3, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return module(x); }
  torch::nn::Linear module{nullptr};
};

TEST(StateDict, SaysHowToSaveAWrapperWhosePrefixIsAmbiguous) {
  const TemporaryFolder folder;
  const std::string path = folder.path("net.safetensors");
  const auto plain = std::make_shared<Holder>();
  DataParallel model(std::make_shared<Holder>(), devices("cpu"));
  save(*model, path);  // module.module.weight
  expect_problem(error_of<CheckpointError>([&] { load(*plain, path); }),
                 ErrorCode::kStateMismatch,
                 {"the names differ only by the \"module.\"",
                  "lockstep::save(*model->module(), path)"});
  lockstep::save(*model->module(), path);
  load(*plain, path);
  EXPECT_EQ(parameter_digest(*plain), parameter_digest(*model->module()));
}

TEST(StateDict, DoesNotBlameWrappersForOtherShapes) {
  const TemporaryFolder folder;
  const std::string path = folder.path("net.safetensors");
  torch::nn::Linear from(3, 2), to(4, 2);
  save(*from, path);
  const auto message = error_of<CheckpointError>([&] { load(*to, path); });
  expect_problem(message, ErrorCode::kStateMismatch,
                 {"weight (expected [2, 4], got [2, 3])", "build the model"});
  EXPECT_EQ(message.find("wrapper"), std::string::npos) << message;
}

TEST(StateDict, DoesNotBlameWrappersForOtherNames) {
  torch::nn::Linear net(3, 2);
  EXPECT_FALSE(contains(error_of<CheckpointError>([&] {
                          load_state_dict(*net, {{"module.weight", net->weight},
                                                 {"scale", net->bias}});
                        }),
                        "wrapper"));
}

TEST(StateDict, ConvertsToTheModulesType) {
  Net from, to;
  from->to(torch::kFloat64);
  load_state_dict(*to, copied(*from));
  EXPECT_EQ(to->fc->weight.scalar_type(), torch::kFloat32);
  EXPECT_TRUE(to->fc->weight.equal(from->fc->weight.to(torch::kFloat32)));
}

TEST(StateDict, ConvertsAnyFloatingTypeToAnyOther) {
  const std::vector<torch::Dtype> types{torch::kFloat64, torch::kFloat32,
                                        torch::kHalf, torch::kBFloat16};
  for (const auto given : types) {
    for (const auto wanted : types) {
      Net from, to;
      from->to(given);
      to->to(wanted);
      load_state_dict(*to, copied(*from));
      EXPECT_EQ(to->fc->weight.scalar_type(), wanted);
      EXPECT_TRUE(to->fc->weight.equal(from->fc->weight.to(wanted)));
    }
  }
}

TEST(StateDict, RefusesOtherConversionsByNameAndLoadsNothing) {
  Net net;
  const std::string before = parameter_digest(*net);
  const auto refusal = [&](const std::string& name, torch::Tensor tensor) {
    NamedTensors tensors = copied(*Net());
    for (auto& entry : tensors) {
      if (entry.first == name) entry.second = tensor;
    }
    const std::string message = error_of<CheckpointError>(
        [&] { load_state_dict(*net, tensors, "other.safetensors"); });
    EXPECT_EQ(parameter_digest(*net), before);
    return message;
  };
  const torch::Tensor weight = net->fc->weight.detach();
  for (const auto& [type, name] :
       {std::pair(torch::kInt64, "Long"), std::pair(torch::kInt8, "Char"),
        std::pair(torch::kBool, "Bool"),
        std::pair(torch::kComplexFloat, "ComplexFloat")}) {
    const std::string message = refusal("fc.weight", weight.to(type));
    EXPECT_PRED2(contains, message, "other.safetensors does not fit the model");
    EXPECT_PRED2(contains, message,
                 fmt::format("; 1 of another type: fc.weight (expected Float, "
                             "got {})",
                             name));
  }
  // The reverse: a counter that is not a whole number.
  EXPECT_PRED2(
      contains,
      refusal("bn.num_batches_tracked", torch::full({}, 2.5, torch::kFloat32)),
      "bn.num_batches_tracked (expected Long, got Float)");
}

TEST(StateDict, ConvertsCountersThatKeepTheirValue) {
  // LibTorch's Module::to(dtype) makes them floating point.
  for (const auto given : {torch::kHalf, torch::kFloat64, torch::kInt32}) {
    for (const auto wanted : {torch::kInt64, torch::kFloat32}) {
      Net from, to;
      from->bn->num_batches_tracked.set_data(torch::full({}, 7, given));
      to->bn->num_batches_tracked.set_data(torch::zeros({}, wanted));
      load_state_dict(*to, copied(*from));
      EXPECT_EQ(to->bn->num_batches_tracked.item<double>(), 7);
    }
  }
}

TEST(StateDict, RefusesNumbersThatTheTypeCannotHold) {
  Net from, to;
  to->to(torch::kHalf);
  from->fc->weight.detach().view(-1)[1] = 1e6;
  const std::string before = parameter_digest(*to);
  expect_problem(
      error_of<CheckpointError>([&] { load_state_dict(*to, copied(*from)); }),
      ErrorCode::kStateMismatch, {"fc.weight", "Half", "Float", "range"});
  EXPECT_EQ(parameter_digest(*to), before);
}

TEST(StateDict, NamesWhatDoesNotFitAndLoadsNothing) {
  Net net;
  const std::string before = parameter_digest(*net);
  NamedTensors tensors = copied(*Net(5));
  tensors.erase(tensors.begin() + 5);  // removes fc.bias
  tensors.emplace_back("head.weight", torch::ones(1));
  const std::string message = error_of<CheckpointError>(
      [&] { load_state_dict(*net, tensors, "wrong.safetensors"); });
  expect_problem(
      message, ErrorCode::kStateMismatch,
      {"wrong.safetensors", "1 missing: fc.bias", "1 unexpected: head.weight",
       "conv.weight", "[4, 3, 3, 3]", "[5, 3, 3, 3]"});
  EXPECT_EQ(parameter_digest(*net), before);
}

TEST(StateDict, NamesTheFirstOfManyAndCountsTheRest) {
  torch::nn::Sequential deep;
  for (int i = 0; i < 20; ++i) deep->push_back(torch::nn::Linear(1, 1));
  const std::string message =
      error_of<CheckpointError>([&] { load_state_dict(*deep, {}); });
  expect_problem(message, ErrorCode::kStateMismatch,
                 {"40 missing: 0.weight, 0.bias,", "32 more"});
  EXPECT_LT(message.size(), 400u);
}

TEST(StateDict, DigestSeesNamesShapesAndEveryBit) {
  const auto digest = [](const char* name, const torch::Tensor& tensor) {
    torch::nn::Module module;
    module.register_parameter(name, tensor, /*requires_grad=*/false);
    return parameter_digest(module);
  };
  const torch::Tensor zeros = torch::zeros({2, 3});
  const std::string base = digest("w", zeros);
  EXPECT_EQ(base, digest("w", torch::zeros({2, 3})));
  EXPECT_EQ(base, digest("w", torch::zeros({3, 2}).t()));
  EXPECT_NE(base, digest("v", zeros));
  EXPECT_NE(base, digest("w", torch::zeros({3, 2})));
  EXPECT_NE(base, digest("w", -zeros));
  EXPECT_NE(base, digest("w", torch::zeros({2, 3}, torch::kInt32)));
}

// If ranks shared the tensor, each of them would load into it.
TEST(StateDict, IsLoadedIntoMemoryOfTheRanksOwn) {
  ProcessGroupOptions options;
  options.backend("shm");
  spawn(
      2,
      [](ProcessGroup world) {
        Net net;
        const auto values = copied(*Net());
        const SharedMemory memory = world.shared_memory(4096);
        torch::Tensor& weight = net->fc->weight;
        weight.set_data(shared_tensor(memory, 0, 0, weight));
        load_state_dict(*net, values);
        TORCH_CHECK(!is_shared_tensor(weight));
        TORCH_CHECK(torch::equal(weight, values[4].second));
        world.barrier();
      },
      options);
}

}  // namespace
}  // namespace lockstep::state_dict_test
