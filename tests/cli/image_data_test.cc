// Image datasets on the command line: `data`, and `train --data`.
// Tier: nightly, by case. Each case starts the program.
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/cores.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/https_server.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"
#include "tests/data/idx_bytes.h"
#include "tests/data/images/tiny_images.h"

namespace lockstep::image_data_test {
namespace {

using Words = std::vector<std::string>;

Words train_on(const std::string& name, const std::string& dir,
               const Words& more) {
  Words words{"train",       "--data", name,           "--data-dir", dir,
              "--max-steps", "3",      "--batch-size", "8"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string digest_of(const Words& words) {
  const auto ended = run_lockstep(words);
  EXPECT_EQ(ended.code, 0) << ended.err;
  return digest_in(ended.out);
}

// Writes two classes of twelve images in several sizes, as JPEG and PNG.
void write_tree(const std::string& root) {
  for (const char* split : {"/train", "/val"}) {
    for (int label = 0; label < 2; ++label) {
      for (int i = 0; i < 12; ++i) {
        const auto shade = static_cast<uint8_t>(90 * label + 5 * i);
        const std::string image = i % 2 == 0 ? data::png_of(20 + i, 17, shade)
                                             : data::jpeg_of(15, 30 + i, shade);
        write_text(root + split + "/" + std::string(1, 'a' + label) + "/" +
                       std::to_string(i) + (i % 2 == 0 ? ".png" : ".jpg"),
                   image);
      }
    }
  }
}

std::string pixels(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * i / 7);
  return bytes;
}

void write_mnist(const std::string& dir) {
  for (const char* part : {"/train", "/t10k"}) {
    write_text(dir + part + "-images-idx3-ubyte",
               data::idx_bytes({24, 28, 28}, pixels(24 * 784)));
    write_text(dir + part + "-labels-idx1-ubyte",
               data::idx_bytes({24},
                               "\1\2\3\4\5\6\7\10\11\1\2\3"
                               "\1\2\3\4\5\6\7\10\11\1\2\3"));
  }
}

void write_cifar100(const std::string& dir) {
  for (const char* name : {"/train.bin", "/test.bin"}) {
    std::string records;
    for (int i = 0; i < 24; ++i) {
      records += std::string{'\5', static_cast<char>(4 * i)} + pixels(3072);
    }
    write_text(dir + name, records);
  }
}

TEST(ImageFolder, TrainsToTheSameBitsWhoeverReadsIt) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  const TemporaryFolder folder;
  write_tree(folder.path("tree"));
  std::set<std::string> digests;
  for (const Words& how : std::vector<Words>{
           {"--strategy", "single", "--devices", "cpu"},
           {"--strategy", "single", "--devices", "cpu", "--workers", "0"},
           {"--strategy", "dp", "--devices", "2xcpu", "--workers", "3"},
           {"--strategy", "ddp", "--devices", "2xcpu"}}) {
    Words words = how;
    words.insert(words.end(), {"--image-size", "16", "--shards", "2"});
    digests.insert(
        digest_of(train_on("image-folder", folder.path("tree"), words)));
  }
  EXPECT_EQ(digests.size(), 1u);
}

TEST(ImageFolder, IsEvaluatedAndResumedAsItWasTrained) {
  const TemporaryFolder folder;
  write_tree(folder.path("tree"));
  const std::string run = folder.path("run");
  const auto words = [&](const std::string& size) {
    return train_on("image-folder", folder.path("tree"),
                    {"--model", "mlp", "--image-size", size, "--out-dir", run,
                     "--resume", "auto", "--devices", "cpu"});
  };
  digest_of(words("16"));
  // An mlp accepts images of only one size.
  const auto eval = run_lockstep({"eval", "--checkpoint", run});
  EXPECT_EQ(eval.code, 0) << eval.err;
  EXPECT_PRED2(contains, eval.out, "Samples: 24");
  const auto named =
      run_lockstep({"eval", "--checkpoint", run, "--data", "image-folder",
                    "--data-dir", folder.path("tree")});
  EXPECT_EQ(named.code, 0) << named.err;
  auto other = words("24");
  other[5 + 1] = "6";  // --max-steps
  const auto ended = run_lockstep(other);
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, in_brackets(ErrorCode::kResumeConflict));
}

TEST(ImageFolder, NamesABrokenFileOnce) {
  const TemporaryFolder folder;
  write_tree(folder.path("tree"));
  const std::string path = folder.path("tree/train/b/7.jpg");
  write_text(path, content_of(path).substr(0, 300));
  const auto ended = run_lockstep(
      train_on("image-folder", folder.path("tree"), {"--image-size", "16"}));
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(count_of(ended.err, path), 1) << ended.err;
  EXPECT_PRED2(contains, ended.err, in_brackets(ErrorCode::kMalformedData));
}

TEST(Datasets, FitEveryModel) {
  const TemporaryFolder folder;
  write_mnist(folder.path("mnist"));
  write_cifar100(folder.path("cifar100"));
  for (const std::string name : {"mnist", "fashion-mnist", "cifar100"}) {
    const std::string dir =
        folder.path(name == "cifar100" ? "cifar100" : "mnist");
    for (const std::string model : {"cnn", "mlp", "resnet18"}) {
      SCOPED_TRACE(name + " " + model);
      const std::string run = folder.path(name + model);
      digest_of(train_on(
          name, dir, {"--model", model, "--out-dir", run, "--devices", "cpu"}));
      const auto eval = run_lockstep({"eval", "--checkpoint", run});
      EXPECT_EQ(eval.code, 0) << eval.err;
      EXPECT_PRED2(contains, eval.out, "test split of " + name);
      EXPECT_PRED2(contains, eval.out, "Samples: 24");
    }
  }
  // Uses a model for gray images with colour images.
  const auto ended =
      run_lockstep({"eval", "--checkpoint", folder.path("mnistcnn"), "--data",
                    "cifar100", "--data-dir", folder.path("cifar100")});
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, in_brackets(ErrorCode::kBadTensor));
}

TEST(Datasets, TellWhatTheyNeed) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"train", "--data", "mnist"}, "--data-dir"},
      {{"train", "--data", "image-folder"}, "train/CLASS/"},
      {{"train", "--data-dir", "x"}, "synthetic"},
      {{"train", "--image-size", "32"}, "--image-size is for"},
      {{"train", "--data", "fashion-mnst"}, "did you mean 'fashion-mnist'"},
      {{"data"}, "name"},
      {{"data", "mnist"}, "--dir"},
      {{"data", "cifar11", "--dir", "x"}, "did you mean 'cifar10'"},
      {{"data", "mnist", "--dir", "x", "--mirror", "http://a/"}, "https://"}};
  for (const auto& [words, part] : cases) {
    const auto ended = run_lockstep(words);
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_PRED2(contains, ended.err, part);
  }
}

TEST(Data, SaysThatFilesAreThereAndVerified) {
  const TemporaryFolder folder;
  Sha256 sha256;
  sha256.add("records");
  const std::string digest = sha256.hex();
  std::string record;
  for (const char* name : {"train.bin", "test.bin", "coarse_label_names.txt",
                           "fine_label_names.txt"}) {
    write_text(folder.path(name), "records");
    record += digest + "  " + name + "\n";
  }
  write_text(folder.path("cifar100.sha256"), record);
  const Words words{"data", "cifar100", "--dir", folder.path()};
  const auto ended = run_lockstep(words);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out,
               "cifar100 is already downloaded and verified");
  write_text(folder.path("test.bin"), "others");
  const auto changed = run_lockstep(words);
  EXPECT_EQ(changed.code, 1);
  expect_problem(changed.err, ErrorCode::kMalformedData,
                 {folder.path("test.bin"), digest});
}

TEST(Data, GoesOnAfterCtrlC) {
  const HttpsServer server;
  constexpr size_t kBytes = 9'912'422;  // size of MNIST's first file
  server.serve("train-images-idx3-ubyte.gz", std::string(kBytes, 'x'));
  const TemporaryFolder folder;
  const Words words{"data",        "mnist",    "--dir",
                    folder.path(), "--mirror", server.url("slow")};
  const std::map<std::string, std::string> environment{
      {"no_proxy", "127.0.0.1"}, {"CURL_CA_BUNDLE", server.ca_file()}};
  const std::string part = folder.path("train-images-idx3-ubyte.gz.part");
  Program program(words, environment);
  ASSERT_TRUE(wait_until([&] {
    std::error_code none;
    // curl keeps the last bytes in a buffer.
    return std::filesystem::file_size(part, none) > kBytes / 3 && !none;
  }));
  program.send(SIGINT);
  EXPECT_EQ(program.wait(), 130);
  EXPECT_PRED2(contains, program.err(), in_brackets(ErrorCode::kInterrupted));
  server.serve("go", "");
  // The rest arrives, but it is not MNIST.
  const auto ended = run_lockstep(words, environment);
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kDownloadFailed, {"440fcabf73cc546f"});
  EXPECT_PRED2(contains, server.log(), "bytes=");
  EXPECT_FALSE(std::filesystem::exists(part));
}

}  // namespace
}  // namespace lockstep::image_data_test
