#include "lockstep/cli/data/catalog.h"

namespace lockstep::cli {

// The authors publish MD5 sums. These SHA-256 are of the files with those sums.
const std::vector<RemoteDataset>& datasets() {
  static const std::vector<RemoteDataset> all{
      {.name = "cifar10",
       .url = "https://www.cs.toronto.edu/~kriz/",
       .files = {{.name = "cifar-10-binary.tar.gz",
                  .bytes = 170'052'171,
                  .sha256 = "c4a38c50a1bc5f3a1c5537f2155ab9d6"
                            "8f9f25eb1ed8d9ddda3db29a59bca1dd",
                  .members = {"cifar-10-batches-bin/data_batch_1.bin",
                              "cifar-10-batches-bin/data_batch_2.bin",
                              "cifar-10-batches-bin/data_batch_3.bin",
                              "cifar-10-batches-bin/data_batch_4.bin",
                              "cifar-10-batches-bin/data_batch_5.bin",
                              "cifar-10-batches-bin/test_batch.bin",
                              "cifar-10-batches-bin/batches.meta.txt"}}}},
      {.name = "cifar100",
       .url = "https://www.cs.toronto.edu/~kriz/",
       .files = {{.name = "cifar-100-binary.tar.gz",
                  .bytes = 168'513'733,
                  .sha256 = "58a81ae192c23a4be8b1804d68e518ed"
                            "807d710a4eb253b1f2a199162a40d8ec",
                  .members = {"cifar-100-binary/train.bin",
                              "cifar-100-binary/test.bin",
                              "cifar-100-binary/coarse_label_names.txt",
                              "cifar-100-binary/fine_label_names.txt"}}}},
      {.name = "mnist",
       .url = "https://ossci-datasets.s3.amazonaws.com/mnist/",
       .files = {{"train-images-idx3-ubyte.gz", 9'912'422,
                  "440fcabf73cc546fa21475e81ea37026"
                  "5605f56be210a4024d2ca8f203523609"},
                 {"train-labels-idx1-ubyte.gz", 28'881,
                  "3552534a0a558bbed6aed32b30c495cc"
                  "a23d567ec52cac8be1a0730e8010255c"},
                 {"t10k-images-idx3-ubyte.gz", 1'648'877,
                  "8d422c7b0a1c1c79245a5bcf07fe86e3"
                  "3eeafee792b84584aec276f5a2dbc4e6"},
                 {"t10k-labels-idx1-ubyte.gz", 4'542,
                  "f7ae60f92e00ec6debd23a6088c31dbd"
                  "2371eca3ffa0defaefb259924204aec6"}}},
      // torchvision uses the bucket's website address, which does not support
      // HTTPS.
      {.name = "fashion-mnist",
       .url = "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
       .files = {{"train-images-idx3-ubyte.gz", 26'421'880,
                  "3aede38d61863908ad78613f6a32ed27"
                  "1626dd12800ba2636569512369268a84"},
                 {"train-labels-idx1-ubyte.gz", 29'515,
                  "a04f17134ac03560a47e3764e11b92fc"
                  "97de4d1bfaf8ba1a3aa29af54cc90845"},
                 {"t10k-images-idx3-ubyte.gz", 4'422'102,
                  "346e55b948d973a97e58d2351dde16a4"
                  "84bd415d4595297633bb08f03db6a073"},
                 {"t10k-labels-idx1-ubyte.gz", 5'148,
                  "67da17c76eaffca5446c3361aaab5c3c"
                  "d6d1c2608764d35dfb1850b086bf8dd5"}}}};
  return all;
}

}  // namespace lockstep::cli
