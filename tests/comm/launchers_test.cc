// Tier: nightly, by case. It needs Open MPI and Slurm.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/scoped_environment.h"

namespace lockstep {
namespace {

const std::string kFolder = LOCKSTEP_SOURCE_DIR "/tests/comm/launchers";
const std::string kPrint = LOCKSTEP_BINARY_DIR "/bin/print_environment";
constexpr int kNotInstalled = 77;

using Lines = std::vector<std::string>;

/// Returns the output of the shell command as sorted lines, with the job
/// numbers that a launcher makes up replaced.
Lines lines_of(const std::string& command, int& status) {
  const ScopedEnvironment scope({});
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer{};
  for (size_t n = 0;
       (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    text.append(buffer.data(), n);
  }
  const int ended = ::pclose(pipe);
  status = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

class Launchers : public testing::Test {
 protected:
  void expect_of_slurm(const std::string& arguments, const Lines& expected) {
    int status = 0;
    const Lines lines = lines_of(
        "timeout 200 python3 " + kFolder + "/slurm.py " + arguments, status);
    if (status == kNotInstalled) GTEST_SKIP() << "no Slurm";
    EXPECT_EQ(status, 0);
    EXPECT_EQ(lines, expected);
  }
};

TEST_F(Launchers, SrunTellsEachRankItsPlace) {
  expect_of_slurm(
      "srun -n2 " + kPrint,
      {"slurm rank 0/2 local 0/2 node 0 master 127.0.0.1 x 8 job slurm-1.0.0",
       "slurm rank 1/2 local 1/2 node 0 master 127.0.0.1 x 8 job "
       "slurm-1.0.0"});
}

TEST_F(Launchers, SrunTellsRanksOfSeveralNodesTheirPlaces) {
  expect_of_slurm(
      "--nodes 2 srun -N2 -n3 " + kPrint,
      {"slurm rank 0/3 local 0/2 node 0 master lockstep1 x 8 job slurm-1.0.0",
       "slurm rank 1/3 local 1/2 node 0 master lockstep1 x 8 job slurm-1.0.0",
       "slurm rank 2/3 local 0/1 node 1 master lockstep1 x 8 job "
       "slurm-1.0.0"});
}

// The script's own process first, which has as many variables of Slurm's.
TEST_F(Launchers, ABatchScriptIsOneRankAndItsStepsAreSeveral) {
  const auto output = std::filesystem::temp_directory_path() /
                      ("lockstep-batch-" + std::to_string(::getpid()));
  expect_of_slurm(
      "sh -c \"sbatch --quiet --wait -n2 -o " + output.string() + " --wrap '" +
          kPrint + "; srun " + kPrint + "; srun -n1 " + kPrint + "' && cat " +
          output.string() + "\"",
      {"none rank 0/1 local 0/1 node 0 master  x 0 job ",
       "slurm rank 0/1 local 0/1 node 0 master  x 0 job ",
       "slurm rank 0/2 local 0/2 node 0 master 127.0.0.1 x 8 job slurm-1.0.0",
       "slurm rank 1/2 local 1/2 node 0 master 127.0.0.1 x 8 job "
       "slurm-1.0.0"});
  std::filesystem::remove(output);
}

// mpirun starts the ranks of the second node through a daemon that srun starts:
// those have the variables of both.
TEST_F(Launchers, MpirunWithinSlurmIsMpirun) {
  if (::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP();
  expect_of_slurm(
      "--nodes 2 salloc --quiet -N2 -n2 sh -c 'mpirun --allow-run-as-root "
      "-n 2 --map-by node " +
          kPrint + " | sed -E \"s/ master.*//\"'",
      {"openmpi rank 0/2 local 0/1 node 0",
       "openmpi rank 1/2 local 0/1 node 1"});
}

TEST_F(Launchers, MpirunTellsEachRankItsPlace) {
  if (::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP();
  int status = 0;
  const Lines lines =
      lines_of("timeout 60 mpirun --allow-run-as-root --oversubscribe -n 2 " +
                   kPrint + " | sed -E 's/[0-9]+$/N/'",
               status);
  EXPECT_EQ(status, 0);
  const Lines expected{
      "openmpi rank 0/2 local 0/2 node 0 master 127.0.0.1 x 8 job openmpi-N",
      "openmpi rank 1/2 local 1/2 node 0 master 127.0.0.1 x 8 job openmpi-N"};
  EXPECT_EQ(lines, expected);
}

}  // namespace
}  // namespace lockstep
