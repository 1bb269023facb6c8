#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/lm/text/tokens.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::token_file_test {
namespace {

using data::TokenFile;
using data::TokenFileWriter;
using data::TokenFolder;
using data::TokenFormat;

// Returns an llm.c file as its own scripts write it: 256 int32, then the
// tokens.
template <class Token>
std::string llmc_file(int32_t magic, int32_t version, int32_t count,
                      const std::vector<Token>& tokens) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  std::string bytes(1024 + tokens.size() * sizeof(Token), '\0');
  std::memcpy(bytes.data(), header.data(), 1024);
  if (!tokens.empty()) {
    std::memcpy(bytes.data() + 1024, tokens.data(),
                tokens.size() * sizeof(Token));
  }
  return bytes;
}

std::vector<int64_t> read_all(const data::TokenSource& source) {
  std::vector<int64_t> tokens(static_cast<size_t>(source.size()));
  source.read(0, tokens);
  return tokens;
}

void expect_refused(const std::string& bytes, ErrorCode code) {
  const TemporaryFolder folder;
  write_text(folder.path("a.bin"), bytes);
  const auto message =
      error_of<DataError>([&] { TokenFile(folder.path("a.bin")); });
  EXPECT_TRUE(is_error(message, code, {"a.bin"}));
}

TEST(TokenFile, ReadsTheFormOfNanoGpt) {
  const TemporaryFolder folder;
  write_text(folder.path("a.bin"), std::string("\x01\x00\xff\xff\x02\x01", 6));
  const TokenFile file(folder.path("a.bin"));
  EXPECT_EQ(file.format(), TokenFormat::kRawUint16);
  EXPECT_EQ(read_all(file), (std::vector<int64_t>{1, 65535, 258}));
}

TEST(TokenFile, ReadsTheFormsOfLlmC) {
  const TemporaryFolder folder;
  write_text(folder.path("gpt2"),
             llmc_file<uint16_t>(20240520, 1, 2, {50256, 65535}));
  write_text(folder.path("llama3"),
             llmc_file<uint32_t>(20240801, 7, 2, {128000, 4294967295}));
  EXPECT_EQ(read_all(TokenFile(folder.path("gpt2"))),
            (std::vector<int64_t>{50256, 65535}));
  EXPECT_EQ(read_all(TokenFile(folder.path("llama3"))),
            (std::vector<int64_t>{128000, 4294967295}));
}

TEST(TokenFile, ReadsAnEmptyFile) {
  const TemporaryFolder folder;
  write_text(folder.path("a.bin"), "");
  EXPECT_EQ(TokenFile(folder.path("a.bin")).size(), 0);
}

TEST(TokenFile, RefusesSizesThatContradictTheHeader) {
  constexpr auto kCode = ErrorCode::kMalformedData;
  const std::string whole = llmc_file<uint16_t>(20240520, 1, 3, {1, 2, 3});
  expect_refused("odd", kCode);
  expect_refused(whole.substr(0, 4), kCode);
  expect_refused(whole.substr(0, 1023), kCode);
  expect_refused(whole.substr(0, whole.size() - 2), kCode);  // truncated
  expect_refused(whole + "more", kCode);
  expect_refused(whole + "m", kCode);
  expect_refused(llmc_file<uint16_t>(20240520, 1, -1, {}), kCode);
  expect_refused(llmc_file<uint16_t>(20240520, 1, INT32_MAX, {1}), kCode);
  expect_refused(llmc_file<uint32_t>(20240801, 7, 2, {1}), kCode);
}

TEST(TokenFile, RefusesOtherVersions) {
  expect_refused(llmc_file<uint16_t>(20240520, 2, 1, {1}),
                 ErrorCode::kMalformedData);
  expect_refused(llmc_file<uint32_t>(20240801, 1, 1, {1}),
                 ErrorCode::kMalformedData);
}

TEST(TokenFile, RefusesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  for (const auto& path :
       {folder.path("pipe"), folder.path(), folder.path("missing")}) {
    const auto message = error_of<DataError>([&] { TokenFile{path}; });
    EXPECT_TRUE(is_error(message, ErrorCode::kFileAccess, {path}));
  }
}

TEST(TokenFile, ThatIsCutShortWhileItIsReadIsAnError) {
  const TemporaryFolder folder;
  const std::string path = folder.path("a.bin");
  write_text(path, std::string(size_t{1} << 16, 'a'));
  const TokenFile file(path);
  std::filesystem::resize_file(path, 100);
  const auto message = error_of<DataError>([&] { read_all(file); });
  EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {path}));
}

TEST(TokenFile, ThatGrowsKeepsItsSizeAndHasNoFingerprint) {
  const TemporaryFolder folder;
  const std::string path = folder.path("a.bin");
  write_text(path, "aabb");
  const TokenFile file(path);
  write_text(path, "aabbcc");
  EXPECT_EQ(read_all(file).size(), 2u);
  const auto message = error_of<DataError>([&] { file.fingerprint(); });
  EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {path}));
}

TEST(TokenFile, RefusesTokensThatItDoesNotHave) {
  const TemporaryFolder folder;
  write_text(folder.path("a.bin"), "aabb");
  const TokenFile file(folder.path("a.bin"));
  std::vector<int64_t> out(2);
  for (const int64_t begin : {int64_t{1}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    const auto message =
        error_of<InvalidArgument>([&] { file.read(begin, out); });
    EXPECT_TRUE(is_error(message, ErrorCode::kBadOption, {"a.bin"}));
  }
  file.read(2, {});
}

TEST(TokenFile, FingerprintIsTheSha256OfTheFile) {
  const TemporaryFolder folder;
  // The example "abc" in FIPS 180-4 has three bytes. This digest is that of
  // `printf aabb`, computed by sha256sum of coreutils.
  write_text(folder.path("a.bin"), "aabb");
  EXPECT_EQ(TokenFile(folder.path("a.bin")).fingerprint(),
            "486b34250bd4400c0aa90516fce9a9c0633a922eb40d0828cf299bc4e825acf4");
}

TEST(TokenFileWriter, WritesTheBytesOfLlmC) {
  const TemporaryFolder folder;
  TokenFileWriter narrow(folder.path("narrow"), TokenFormat::kUint16);
  narrow.add(std::vector<uint32_t>{1, 65535});
  EXPECT_FALSE(std::filesystem::exists(folder.path("narrow")));
  narrow.commit();
  EXPECT_EQ(content_of(folder.path("narrow")),
            llmc_file<uint16_t>(20240520, 1, 2, {1, 65535}));

  TokenFileWriter wide(folder.path("wide"), TokenFormat::kUint32);
  wide.add(std::vector<uint32_t>{1, 4294967295});
  wide.commit();
  EXPECT_EQ(content_of(folder.path("wide")),
            llmc_file<uint32_t>(20240801, 7, 2, {1, 4294967295}));

  TokenFileWriter raw(folder.path("raw"), TokenFormat::kRawUint16);
  raw.add(std::vector<uint32_t>{258});
  raw.commit();
  EXPECT_EQ(content_of(folder.path("raw")), "\x02\x01");
}

TEST(TokenFileWriter, WritesMoreThanItKeeps) {
  const TemporaryFolder folder;
  std::vector<uint32_t> tokens(500'000);
  std::iota(tokens.begin(), tokens.end(), 0u);
  TokenFileWriter writer(folder.path("a.bin"), TokenFormat::kUint32);
  writer.add(std::span(tokens).first(7));
  writer.add(std::span(tokens).subspan(7));
  writer.commit();
  const auto read = read_all(TokenFile(folder.path("a.bin")));
  EXPECT_TRUE(
      std::equal(read.begin(), read.end(), tokens.begin(), tokens.end()));
}

TEST(TokenFileWriter, RefusesTokensWithoutRoom) {
  const TemporaryFolder folder;
  {
    TokenFileWriter writer(folder.path("a.bin"), TokenFormat::kUint16);
    const auto message =
        error_of<DataError>([&] { writer.add(std::vector<uint32_t>{65536}); });
    EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {"65536"}));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

class Shards : public testing::Test {
 protected:
  void write(const std::string& name, const std::vector<uint32_t>& tokens,
             TokenFormat format = TokenFormat::kUint16) {
    TokenFileWriter writer(folder_.path(name), format);
    writer.add(tokens);
    writer.commit();
  }

  const TemporaryFolder folder_;
};

TEST_F(Shards, AreOneSequenceInTheOrderOfTheirNames) {
  write("train_000002.bin", {6, 7});
  write("train_000000.bin", {0, 1, 2});
  write("train_000001.bin", {});
  write("val_000000.bin", {100});
  write_text(folder_.path("tokenizer.json"), "{}");
  const TokenFolder tokens(folder_.path(), "train_");
  ASSERT_EQ(tokens.size(), 5);
  const std::vector<int64_t> all{0, 1, 2, 6, 7};
  for (size_t begin = 0; begin <= all.size(); ++begin) {
    for (size_t end = begin; end <= all.size(); ++end) {
      std::vector<int64_t> window(end - begin);
      tokens.read(static_cast<int64_t>(begin), window);
      EXPECT_TRUE(std::equal(window.begin(), window.end(),
                             all.begin() + static_cast<long>(begin)));
    }
  }
  EXPECT_EQ(TokenFolder(folder_.path()).size(), 6);
}

TEST_F(Shards, HaveAFingerprintOfTheirContents) {
  write("a.bin", {1, 2});
  write("b.bin", {3});
  const std::string before = TokenFolder(folder_.path()).fingerprint();
  std::filesystem::rename(folder_.path("b.bin"), folder_.path("c.bin"));
  EXPECT_EQ(TokenFolder(folder_.path()).fingerprint(), before);
  write("c.bin", {4});
  EXPECT_NE(TokenFolder(folder_.path()).fingerprint(), before);
}

TEST_F(Shards, OfDifferentFormatsAreRefused) {
  write("a.bin", {1});
  write("b.bin", {1}, TokenFormat::kUint32);
  const auto message =
      error_of<DataError>([&] { TokenFolder{folder_.path()}; });
  EXPECT_TRUE(is_error(message, ErrorCode::kMalformedData, {"a.bin", "b.bin"}));
}

TEST_F(Shards, MustBeThere) {
  write("val_0.bin", {1});
  const auto message_of = [](const std::string& path) {
    return error_of<DataError>([&] { TokenFolder(path, "train_"); });
  };
  const std::string missing = folder_.path("missing");
  EXPECT_TRUE(is_error(message_of(missing), ErrorCode::kFileAccess,
                       {missing, "a folder with files of tokens"}));
  EXPECT_TRUE(is_error(message_of(folder_.path()), ErrorCode::kFileAccess,
                       {folder_.path(), "train_"}));
}

TEST_F(Shards, RefuseTokensThatTheyDoNotHave) {
  write("a.bin", {1, 2});
  const TokenFolder tokens(folder_.path());
  std::vector<int64_t> out(2);
  for (const int64_t begin : {int64_t{1}, int64_t{-1}, INT64_MAX}) {
    EXPECT_THROW(tokens.read(begin, out), InvalidArgument);
  }
}

}  // namespace
}  // namespace lockstep::token_file_test
