#include "lockstep/data/cifar100.h"

#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/data/cifar_records.h"
#include "lockstep/data/data_folder.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

std::string cifar100_advice(const fs::path& dir) {
  std::error_code ignored;
  if (fs::is_directory(dir / "cifar-100-binary", ignored)) {
    return "name the folder cifar-100-binary in it";
  }
  if (fs::exists(dir / "train", ignored)) {
    return "this is the Python form; get the binary one: lockstep data "
           "cifar100 --dir DIR";
  }
  return "name the folder with train.bin and test.bin (--data-dir), or get "
         "them: lockstep data cifar100 --dir DIR";
}

}  // namespace

std::shared_ptr<const Dataset> cifar100(const std::string& dir, Split split) {
  check_data_folder(dir, "cifar100", "the folder of CIFAR-100's binary files");
  const std::string name = split == Split::kTrain ? "train.bin" : "test.bin";
  const fs::path path = fs::path(dir) / name;
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw DataError({.code = ErrorCode::kMalformedData,
                     .what = "folder " + dir + " is not of CIFAR-100",
                     .expected = name,
                     .got = error ? error.message() : "no such file",
                     .fix = cifar100_advice(dir)});
  }
  return cifar_records({.name = "CIFAR-100",
                        .labels = {20, 100},
                        .mean = {0.5071f, 0.4865f, 0.4409f},
                        .stddev = {0.2673f, 0.2564f, 0.2762f}},
                       {path.string()});
}

}  // namespace lockstep::data
