// Times MPI_Allreduce in the same way as `lockstep bench allreduce`: in place,
// a sum of floats, the median over the rounds of the slowest rank's time.
//
//   mpirun -n 2 mpi_allreduce SIZE[,SIZE...] ROUNDS
//
// prints a line "SIZE MICROSECONDS" for each size in bytes.
// bench/allreduce_vs_mpi.py builds it and compares it with Lockstep.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mpi.h>
#include <sstream>
#include <string>
#include <vector>

namespace {

// Times several short calls together, as report/collectives/collective_bench.cc
// does.
constexpr long kBatchBytes = 1 << 20;
constexpr long kMaxCalls = 64;
constexpr int kWarmups = 3;

/// Returns the seconds that one call takes on the slowest rank. Zeroes `data`
/// first, because zeros stay the same in any number of sums.
double time_of_call(std::vector<float>& data, long calls) {
  std::fill(data.begin(), data.end(), 0.0F);
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (long i = 0; i < calls; ++i) {
    MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()),
                  MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  double seconds = (MPI_Wtime() - begin) / static_cast<double>(calls);
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

/// Returns whether every element of a sum of rank + 1 over all ranks is right.
bool is_sum_right(std::vector<float>& data, int rank, int ranks) {
  std::fill(data.begin(), data.end(), static_cast<float>(rank + 1));
  MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()),
                MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
  return std::all_of(data.begin(), data.end(),
                     [&](float value) { return value == sum; });
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3) {
    if (rank == 0) std::fprintf(stderr, "usage: %s SIZES ROUNDS\n", argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const long rounds = std::atol(argv[2]);
  std::istringstream sizes(argv[1]);
  for (std::string size; std::getline(sizes, size, ',');) {
    const long bytes = std::atol(size.c_str());
    std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float));
    if (!is_sum_right(data, rank, ranks)) {
      std::fprintf(stderr, "rank %d: a wrong sum of %ld bytes\n", rank, bytes);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    const long calls =
        std::clamp(kBatchBytes / std::max(bytes, 1L), 1L, kMaxCalls);
    for (int i = 0; i < kWarmups; ++i) time_of_call(data, calls);
    std::vector<double> seconds;
    for (long i = 0; i < rounds; ++i) {
      seconds.push_back(time_of_call(data, calls));
    }
    std::sort(seconds.begin(), seconds.end());
    if (rank == 0) {
      std::printf("%ld %.3f\n", bytes, seconds[seconds.size() / 2] * 1e6);
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
