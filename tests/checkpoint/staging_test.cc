#include "lockstep/checkpoint/staging.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/device/tensor_checksum.h"

namespace lockstep::staging_test {
namespace {

using torch::Tensor;

constexpr size_t kPiece = CopyPlan::kPieceBytes;

Tensor random_bytes(size_t size) {
  return torch::randint(256, {static_cast<int64_t>(size)}, torch::kByte);
}

std::vector<uint64_t> sums_of_pieces(const Tensor& bytes) {
  std::vector<uint64_t> sums;
  for (const Tensor& piece : bytes.split(static_cast<int64_t>(kPiece))) {
    if (piece.numel() > 0) sums.push_back(sum_of_words(piece));
  }
  return sums;
}

TEST(CopyPlan, CopiesAndSumsPiecesOfAnySizeAndAlignment) {
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{15}, size_t{63}, size_t{64}, size_t{65},
        size_t{1000}, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 77}) {
    for (const int64_t from : {0, 1, 8}) {
      for (const int64_t to : {0, 1, 16}) {
        SCOPED_TRACE(testing::Message()
                     << size << " bytes, " << from << ", " << to);
        const Tensor source = random_bytes(size + 8).slice(
            0, from, from + static_cast<int64_t>(size));
        const Tensor whole =
            torch::zeros({static_cast<int64_t>(size) + 32}, torch::kByte);
        const Tensor target =
            whole.slice(0, to, to + static_cast<int64_t>(size));
        CopyPlan plan;
        plan.add(source, target);
        std::vector<uint64_t> sums(CopyPlan::pieces_of(source));
        plan.run_and_sum(sums);
        EXPECT_TRUE(target.equal(source));
        EXPECT_EQ(sums, sums_of_pieces(source));
        // Nothing beside the target was written.
        EXPECT_EQ(whole.sum().item<int64_t>(), source.sum().item<int64_t>());
      }
    }
  }
}

// Workers copy and sum their shares. A tensor that is not dense is one share.
TEST(CopyPlan, SumsOfAllSharesAreThoseOfAll) {
  const Tensor strided = torch::randn({700, 1000}).slice(1, 0, 900);
  const std::vector<Tensor> sources = {random_bytes(2 * kPiece + 5), strided,
                                       torch::empty({0}),
                                       torch::randn({3, 5}).t()};
  for (const int workers : {1, 2, 3, 7}) {
    std::vector<Tensor> targets;
    std::vector<uint64_t> sums;
    for (const Tensor& source : sources) {
      targets.push_back(source.is_non_overlapping_and_dense()
                            ? torch::zeros_like(source)
                            : torch::zeros(source.sizes()));
      sums.resize(sums.size() + CopyPlan::pieces_of(source), 77);
    }
    for (int worker = 0; worker < workers; ++worker) {
      CopyPlan plan;
      for (size_t i = 0; i < sources.size(); ++i) {
        plan.add(sources[i], targets[i]);
      }
      plan.keep_share(worker, workers);
      plan.run_and_sum(sums);
    }
    std::vector<uint64_t> expected;
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_TRUE(targets[i].equal(sources[i])) << i;
      const auto size = static_cast<int64_t>(targets[i].nbytes());
      const Tensor bytes =
          torch::from_blob(targets[i].data_ptr(), {size}, torch::kByte);
      const auto own = sums_of_pieces(bytes);
      expected.insert(expected.end(), own.begin(), own.end());
    }
    EXPECT_EQ(sums, expected);
  }
}

TEST(CopyPlan, ASumShowsEachBitThatChanges) {
  const Tensor bytes = random_bytes(200);
  auto* data = static_cast<std::byte*>(bytes.mutable_data_ptr());
  const std::span<const std::byte> all(data, 200);
  const uint64_t sum = sum_of_bytes(all);
  for (size_t i = 0; i < 8 * all.size(); ++i) {
    data[i / 8] ^= std::byte{1} << (i % 8);
    EXPECT_NE(sum_of_bytes(all), sum) << i;
    data[i / 8] ^= std::byte{1} << (i % 8);
  }
}

}  // namespace
}  // namespace lockstep::staging_test
