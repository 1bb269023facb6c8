#include "lockstep/download/download_dataset.h"

namespace lockstep::download {
namespace {

constexpr int64_t kTextBytes = 1 << 20;

// 10,000 records of a label and an image.
constexpr int64_t kBatchBytes = 10'000 * 3073;

}  // namespace

const std::vector<RemoteDataset>& datasets() {
  static const std::vector<RemoteDataset> all{
      {.name = "cifar10",
       .url = "https://www.cs.toronto.edu/~kriz/",
       .files = {{.name = "cifar-10-binary.tar.gz",
                  .bytes = 170'052'171,
                  .md5 = "c32a1d4ab5d03f1284b67883e8d87530",
                  .folder = "cifar-10-batches-bin",
                  .members = {{"data_batch_1.bin", kBatchBytes},
                              {"data_batch_2.bin", kBatchBytes},
                              {"data_batch_3.bin", kBatchBytes},
                              {"data_batch_4.bin", kBatchBytes},
                              {"data_batch_5.bin", kBatchBytes},
                              {"test_batch.bin", kBatchBytes},
                              {"batches.meta.txt", kTextBytes}}}}},
      {.name = "cifar100",
       .url = "https://www.cs.toronto.edu/~kriz/",
       .files = {{.name = "cifar-100-binary.tar.gz",
                  .bytes = 168'513'733,
                  .md5 = "03b5dce01913d631647c71ecec9e9cb8",
                  .folder = "cifar-100-binary",
                  .members = {{"train.bin", 50'000 * 3074},
                              {"test.bin", 10'000 * 3074},
                              {"coarse_label_names.txt", kTextBytes},
                              {"fine_label_names.txt", kTextBytes}}}}},
      {.name = "mnist",
       .url = "https://ossci-datasets.s3.amazonaws.com/mnist/",
       .files = {{"train-images-idx3-ubyte.gz", 9'912'422,
                  "f68b3c2dcbeaaa9fbdd348bbdeb94873"},
                 {"train-labels-idx1-ubyte.gz", 28'881,
                  "d53e105ee54ea40749a09fcbcd1e9432"},
                 {"t10k-images-idx3-ubyte.gz", 1'648'877,
                  "9fb629c4189551a2d022fa330f9573f3"},
                 {"t10k-labels-idx1-ubyte.gz", 4'542,
                  "ec29112dd5afa0611ce80d1b7f02629c"}}},
      // torchvision uses the bucket's website address, which does not support
      // HTTPS.
      {.name = "fashion-mnist",
       .url = "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
       .files = {{"train-images-idx3-ubyte.gz", 26'421'880,
                  "8d4fb7e6c68d591d4c3dfef9ec88bf0d"},
                 {"train-labels-idx1-ubyte.gz", 29'515,
                  "25c81989df183df01b3e8a0aad5dffbe"},
                 {"t10k-images-idx3-ubyte.gz", 4'422'102,
                  "bef4ecab320f06d8554ea6380940ec79"},
                 {"t10k-labels-idx1-ubyte.gz", 5'148,
                  "bb300cfdad3c16e7a12a480ee83cd310"}}}};
  return all;
}

}  // namespace lockstep::download
