// Checkpoints with a manifest that was forged and sealed again. Its checksums
// are right, but its contents are wrong.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/models/model_settings.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

using nlohmann::json;

const models::ModelSpec kSmall{
    .name = "mlp", .classes = 3, .in_features = 4, .width = 8, .depth = 2};

std::shared_ptr<models::Model> make(const CheckpointReader& reader) {
  return reader.make([&] {
    return models::make(models::spec_from_settings(reader.info().model),
                        models::Init::kNone);
  });
}

class Forged : public testing::Test {
 protected:
  Forged() : saved_(models::make(kSmall)) {
    torch::optim::SGD optimizer(saved_->parameters(), 0.1);
    path_ = save_checkpoint(folder_.path(), *saved_, optimizer,
                            {.model = models::to_settings(kSmall),
                             .step = 1,
                             .epoch = 0,
                             .parameter_sha256 = {}});
  }

  void forge(const std::function<void(json&)>& change) {
    const std::string name = path_ + "/manifest.json";
    json object = json::parse(std::ifstream(name));
    change(object);
    object.erase("manifest_xxh128");
    object["manifest_xxh128"] = checksum_of(object.dump());
    std::ofstream(name) << object.dump();
  }

  TemporaryFolder folder_;
  std::shared_ptr<models::Model> saved_;
  std::string path_;
};

TEST_F(Forged, NotAtAllIsBuiltAndLoaded) {
  forge([](json&) {});
  const CheckpointReader reader(path_);
  const auto model = make(reader);
  reader.load(*model);
  EXPECT_EQ(parameter_digest(*model), parameter_digest(*saved_));
}

TEST_F(Forged, SizesAreRefusedBeforeTheyTakeMemory) {
  struct Case {
    const char* key;
    int64_t size;
  };
  // The largest number that a manifest may contain, which no machine has.
  for (const Case& forged :
       {Case{"depth", 200000}, Case{"depth", 1 << 24}, Case{"width", 1 << 24},
        Case{"classes", 1 << 24}, Case{"in_features", 1 << 24},
        Case{"width", 9}, Case{"depth", 3}}) {
    forge([&](json& object) {
      object["model"] = models::to_settings(kSmall);
      object["model"][forged.key] = std::to_string(forged.size);
    });
    const std::string message =
        error_of<CheckpointError>([&] { make(CheckpointReader(path_)); });
    expect_problem(message, ErrorCode::kCheckpointDamaged,
                   {path_ + "/manifest.json", "139", forged.key,
                    std::to_string(forged.size)});
  }
}

TEST_F(Forged, ManyTinyLayersAreRefusedToo) {
  forge([](json& object) {
    object["model"]["width"] = "1";
    object["model"]["in_features"] = "1";
    object["model"]["depth"] = "10";
  });
  expect_problem(
      error_of<CheckpointError>([&] { make(CheckpointReader(path_)); }),
      ErrorCode::kCheckpointDamaged, {path_, "6 tensors"});
}

TEST_F(Forged, ADigestOfOtherParametersIsRefusedByName) {
  const std::string right = parameter_digest(*saved_);
  for (const std::string& wrong : {std::string(64, '0'), std::string()}) {
    forge([&](json& object) { object["parameter_sha256"] = wrong; });
    const CheckpointReader reader(path_);
    const auto model = make(reader);
    for (torch::Tensor& parameter : model->parameters()) {
      parameter.detach().fill_(7);
    }
    const std::string before = parameter_digest(*model);
    const std::string message =
        error_of<CheckpointError>([&] { reader.load(*model); });
    expect_problem(message, ErrorCode::kCheckpointDamaged,
                   {path_, "parameter_sha256", wrong, right});
    EXPECT_EQ(parameter_digest(*model), before);
  }
}

}  // namespace
}  // namespace lockstep
