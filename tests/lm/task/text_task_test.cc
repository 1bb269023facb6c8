#include "lockstep/lm/task/text_task.h"

#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/lm/task/text_checkpoint.h"
#include "lockstep/lm/task/text_data.h"
#include "lockstep/train/run/run_training.h"
#include "tests/base/error_code_of.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/report_of_ranks.h"
#include "tests/train/short_runs.h"

namespace lockstep::tasks {
namespace {

using training::Precision;
using training::RunReport;
using training::Strategy;
using training::TrainOptions;

class TextRuns : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 400; ++i) {
      text += "the quick brown fox " + std::to_string(i * i % 97) + "\n";
    }
    write_text(folder_.path("text.txt"), text);
  }

  TextOptions text() const {
    TextOptions options;
    options.model = models::language_spec("gpt-nano");
    options.model.context = 16;
    options.model.layers = 2;
    if (inner_width_ > 0) options.model.inner_width = inner_width_;
    options.data.file = folder_.path("text.txt");
    options.optimizer = {.optimizer = OptimizerKind::kAdamW,
                         .lr = 3e-3,
                         .weight_decay = 0.1,
                         .beta2 = 0.99,
                         .decays_matrices_alone = true};
    return options;
  }

  TrainOptions run(Precision precision = Precision::kFloat32) const {
    TrainOptions options = training::short_run(/*batch_size=*/8, /*shards=*/0);
    options.accumulate(4);
    options.epochs(0);
    options.max_steps(12);
    options.seed(3);
    options.precision(precision);
    options.clip_grad_norm(1);
    options.loading().drop_last(true);
    return options;
  }

  RunReport train(const TrainOptions& options,
                  const training::RunContext& context = {}) const {
    TextTask task(text());
    return training::run_training(task, options, context);
  }

  /// Trains with ranks that are threads.
  RunReport train_on_ranks(TrainOptions options, int ranks,
                           const std::string& backend) const {
    options.strategy(Strategy::kDistributed);
    options.accumulate(4 / ranks);
    options.devices().assign(static_cast<size_t>(ranks), training::cpu_slice());
    return training::report_of_ranks(ranks, backend,
                                     [&](const ProcessGroup& world) {
                                       return train(options, {.world = world});
                                     });
  }

  const TemporaryFolder folder_;
  int64_t inner_width_ = 0;  // differs from the model's
};

const auto kPrecisions = testing::Values(
    Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16);

std::string name_of_type(const testing::TestParamInfo<Precision>& info) {
  return training::to_string(info.param);
}

class TextPrecisions : public TextRuns,
                       public testing::WithParamInterface<Precision> {};

TEST_P(TextPrecisions, HaveOneDigestForFourShards) {
  const TrainOptions options = run(GetParam());
  const RunReport single = train(options);
  const std::string expected = single.parameter_sha256;
  EXPECT_EQ(train_on_ranks(options, 2, "shm").parameter_sha256, expected);
  EXPECT_EQ(train_on_ranks(options, 2, "tcp").parameter_sha256, expected);
  EXPECT_EQ(train_on_ranks(options, 4, "shm").parameter_sha256, expected);
  if (allowed_cores().size() < 2) return;
  TrainOptions dp = options;
  dp.strategy(Strategy::kDataParallel);
  dp.accumulate(2);
  dp.devices(training::cpu_slices(2));
  EXPECT_EQ(train(dp).parameter_sha256, expected);
}

// The scale of the loss is part of the state that a run resumes from.
TEST_P(TextPrecisions, GoOnToTheSameBits) {
  TrainOptions options = run(GetParam());
  const std::string expected = train(options).parameter_sha256;
  options.out_dir(folder_.path("run"));
  options.checkpoint().every(5);
  train(options);
  options.checkpoint().resume(folder_.path("run") + "/step-00000010");
  options.out_dir(folder_.path("other"));
  EXPECT_EQ(train(options).parameter_sha256, expected);
}

// ZeRO cuts matrices of 256 KiB or more.
class TextZero : public TextPrecisions {
 protected:
  TextZero() { inner_width_ = 2048; }

  TrainOptions run_at(ZeroStage zero) const {
    TrainOptions options = run(GetParam());
    options.max_steps(6);
    options.zero(zero);
    return options;
  }
};

TEST_P(TextZero, HasOneDigestForFourShards) {
  const std::string expected = train(run_at(ZeroStage::kNone)).parameter_sha256;
  for (const auto zero : {ZeroStage::kOptimizerState, ZeroStage::kGradients}) {
    for (const int ranks : {2, 4}) {
      EXPECT_EQ(train_on_ranks(run_at(zero), ranks, "tcp").parameter_sha256,
                expected)
          << static_cast<int>(zero) << " on " << ranks << " ranks";
    }
    // These ranks share memory, which holds everything once.
    EXPECT_EQ(train_on_ranks(run_at(zero), 2, "shm").parameter_sha256,
              expected);
  }
}

// Partitioned state is saved whole, so a run can resume with another number of
// ranks.
TEST_P(TextZero, GoesOnAtAnotherStage) {
  const std::string expected = train(run_at(ZeroStage::kNone)).parameter_sha256;
  TrainOptions options = run_at(ZeroStage::kGradients);
  options.out_dir(folder_.path("two"));
  options.checkpoint().every(2);
  train_on_ranks(options, 2, "tcp");
  options = run_at(ZeroStage::kOptimizerState);
  options.checkpoint().resume(folder_.path("two") + "/step-00000002");
  options.out_dir(folder_.path("four"));
  options.checkpoint().every(2);
  EXPECT_EQ(train_on_ranks(options, 4, "tcp").parameter_sha256, expected);
  options = run_at(ZeroStage::kNone);
  options.checkpoint().resume(folder_.path("four") + "/step-00000004");
  EXPECT_EQ(train(options).parameter_sha256, expected);
}

INSTANTIATE_TEST_SUITE_P(Types, TextZero, kPrecisions, name_of_type);

TEST_F(TextRuns, RefuseZeroWithoutRanks) {
  TrainOptions options = run();
  options.zero(ZeroStage::kOptimizerState);
  EXPECT_EQ(error_code_of([&] { train(options); }), ErrorCode::kBadOption);
}

INSTANTIATE_TEST_SUITE_P(Types, TextPrecisions, kPrecisions, name_of_type);

TEST_F(TextRuns, LearnAlikeInAllTypes) {
  const RunReport fp32 = train(run());
  EXPECT_LT(fp32.losses.back(), fp32.losses.front() - 0.5);
  for (const Precision type : {Precision::kBFloat16, Precision::kFloat16}) {
    const RunReport report = train(run(type));
    EXPECT_NE(report.parameter_sha256, fp32.parameter_sha256);
    // Weights are rounded to 8 and 11 bits, so each step is off by about 1e-2.
    EXPECT_NEAR(report.losses.back(), fp32.losses.back(), 0.05);
    EXPECT_EQ(report.skipped_steps, 0);
  }
}

// Their modules return the loss, and not the logits of all tokens.
TEST_F(TextRuns, HaveALossThatTheFirstStepChecks) {
  for (const Precision type :
       {Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16}) {
    const LogCapture log;
    TrainOptions options = run(type);
    options.max_steps(1);
    train(options);
    EXPECT_EQ(log.text().find("could not check"), std::string::npos)
        << log.text();
  }
}

TEST_F(TextRuns, RecomputeToTheSameBits) {
  const std::string expected = train(run()).parameter_sha256;
  TextOptions options = text();
  options.model.recomputes_activations = true;
  TextTask task(options);
  EXPECT_EQ(training::run_training(task, run()).parameter_sha256, expected);
}

TEST_F(TextRuns, TrainAsTheTextbooksDataParallel) {
  TrainOptions options = run();
  options.accumulate(1);
  options.devices(training::cpu_slices(2));
  options.strategy(Strategy::kDataParallel);
  const RunReport expected = train(options);
  options.strategy(Strategy::kDataParallelClassic);
  const RunReport classic = train(options);
  ASSERT_EQ(classic.losses.size(), expected.losses.size());
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(classic.losses[step], expected.losses[step], 1e-3) << step;
  }
}

TEST_F(TextRuns, AreEvaluatedFromTheirCheckpoint) {
  TrainOptions options = run();
  options.out_dir(folder_.path("run"));
  const RunReport report = train(options);
  ASSERT_GT(report.test.samples, 0);
  const TextModel loaded = load_text_model(folder_.path("run"));
  EXPECT_EQ(loaded.model->spec().vocabulary, loaded.tokenizer->vocabulary());
  EXPECT_EQ(loaded.tokenizer->decode(loaded.tokenizer->encode("fox")), "fox");
  const TextSpec spec = text_of(loaded.info);
  EXPECT_EQ(spec.file, folder_.path("text.txt"));
  const auto evaluated = evaluate_text({.checkpoint = folder_.path("run"),
                                        .data = spec,
                                        .devices = {training::cpu_slice()}});
  EXPECT_EQ(evaluated.test.samples, report.test.samples);
  EXPECT_EQ(evaluated.tokens, evaluated.test.samples * 16);
  // Other shards are rounded differently.
  EXPECT_NEAR(evaluated.test.metrics.at("loss"), report.test.metrics.at("loss"),
              1e-5);
}

TEST_F(TextRuns, RefuseTextsThatCanNotBe) {
  const auto with = [&](auto change) {
    TextOptions options = text();
    change(options);
    return error_code_of([&] {
      TextTask task(options);
      training::run_training(task, run());
    });
  };
  write_text(folder_.path("empty.txt"), "");
  write_text(folder_.path("short.txt"), "ab");
  write_text(folder_.path("bytes.txt"), "\xff\xfe");
  const auto with_file = [&](const std::string& name) {
    return with(
        [&](TextOptions& options) { options.data.file = folder_.path(name); });
  };
  EXPECT_EQ(with_file("empty.txt"), ErrorCode::kMalformedData);
  EXPECT_EQ(with_file("bytes.txt"), ErrorCode::kMalformedData);
  EXPECT_EQ(with_file("short.txt"), ErrorCode::kBadOption);
  EXPECT_EQ(with_file("none.txt"), ErrorCode::kFileAccess);
  EXPECT_EQ(
      with([](TextOptions& options) { options.data.tokenizer = "words"; }),
      ErrorCode::kUnknownName);
  EXPECT_EQ(
      with([](TextOptions& options) { options.data.validation_fraction = 1; }),
      ErrorCode::kBadOption);
}

std::vector<int64_t> all_of(const data::TokenSource& tokens) {
  std::vector<int64_t> all(static_cast<size_t>(tokens.size()));
  tokens.read(0, all);
  return all;
}

/// The names and the form that another program gives its files of tokens.
struct TokenNames {
  const char* training;
  const char* validation;
  data::TokenFormat format;
};

TEST(TextData, ReadsTheTokensOfNanoGptAndOfLlmC) {
  for (const TokenNames& names :
       {TokenNames{"train.bin", "val.bin", data::TokenFormat::kRawUint16},
        TokenNames{"tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin",
                   data::TokenFormat::kUint16},
        TokenNames{"fineweb_train_000001.bin", "fineweb_val_000000.bin",
                   data::TokenFormat::kUint32}}) {
    const TemporaryFolder folder;
    const auto write = [&](const std::string& name,
                           const std::vector<uint32_t>& tokens) {
      data::TokenFileWriter file(folder.path(name), names.format);
      file.add(tokens);
      file.commit();
    };
    write(names.training, {0, 1, 2, 1});
    write(names.validation, {2, 0});
    TextSpec spec{.file = folder.path()};
    expect_problem(error_of<DataError>([&] { open_text(spec); }),
                   ErrorCode::kMalformedData,
                   {folder.path(), "nanoGPT", "--tokenizer"});
    // nanoGPT's tokens of characters are those of their text.
    write_text(folder.path("meta.pkl"), "\x80");
    write_text(folder.path("input.txt"), "abc");
    expect_problem(error_of<DataError>([&] { open_text(spec); }),
                   ErrorCode::kMalformedData,
                   {"meta.pkl", "--data-file " + folder.path("input.txt")});
    const TemporaryFolder elsewhere;
    write_text(elsewhere.path("tokenizer.json"),
               R"({"type":"characters","characters":"abc"})");
    spec.tokenizer = elsewhere.path("tokenizer.json");
    const TextData data = open_text(spec);
    EXPECT_EQ(data.tokenizer->vocabulary(), 3);
    EXPECT_EQ(data.tokenizer_path, spec.tokenizer);
    EXPECT_EQ(all_of(*data.training), (std::vector<int64_t>{0, 1, 2, 1}));
    EXPECT_EQ(all_of(*data.validation), (std::vector<int64_t>{2, 0}));
    spec.tokenizer = "chars";
    write_text(folder.path("tokenizer.json"),
               R"({"type":"characters","characters":"abcd"})");
    EXPECT_EQ(open_text(spec).tokenizer->vocabulary(), 4);
  }
}

TEST(TextData, RefusesAFolderWithoutTokens) {
  const TemporaryFolder folder;
  write_text(folder.path("text.txt"), "abc");
  expect_problem(
      error_of<DataError>([&] { open_text({.file = folder.path()}); }),
      ErrorCode::kFileAccess, {folder.path(), "train_*.bin", "tokenize"});
}

TEST(TextData, SaysWhatAFileIsThatIsNoText) {
  const TemporaryFolder folder;
  const std::pair<std::string, const char*> files[] = {
      {"\x1f\x8b\x08", "gunzip"},
      {"\xff\xfe"
       "a",
       "UTF-16"},
      {"\x88\xd8\x34\x01\x01", "name its folder"},
      {"\xa1\xd9\x34\x01\x07", "name its folder"},
      {"abc\xff", "iconv"}};
  for (const auto& [text, cure] : files) {
    write_text(folder.path("text"), text);
    expect_problem(
        error_of<DataError>([&] { open_text({.file = folder.path("text")}); }),
        ErrorCode::kMalformedData, {cure});
  }
}

}  // namespace
}  // namespace lockstep::tasks
