#include "lockstep/lm/models/cross_entropy_rows.h"

#include <cmath>
#include <vector>

#include "lockstep/device/intra_op.h"
#include "lockstep/device/simd.h"
#include "lockstep/lm/models/kernels.h"

namespace lockstep::models {
namespace {

using simd::Lanes;
using torch::Tensor;

template <class T>
struct LogitRows {
  T* logits;  // (N, V)
  const int64_t* targets;
  const float* weights;
  double* losses;
  int64_t vocabulary;
  bool keeps_gradient;
};

struct CrossEntropyRows {
  /// `scratch` has a row of floats.
  template <class T>
  LOCKSTEP_INLINE static void run(const LogitRows<T>* rows, float* scratch,
                                  int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) one_row(*rows, scratch, row);
  }

  template <class T>
  LOCKSTEP_INLINE static void one_row(const LogitRows<T>& rows, float* scratch,
                                      int64_t row) {
    const int64_t count = rows.vocabulary;
    const int64_t whole = count / simd::kLanes * simd::kLanes;
    T* logits = rows.logits + (row * count);
    const int64_t target = rows.targets[row];
    const float weight = rows.weights[row];
    const float chosen = simd::to_float(logits[target]);
    Lanes most = simd::all(-INFINITY);
    for (int64_t i = 0; i < whole; i += simd::kLanes) {
      most = simd::most(most, simd::load(logits + i));
    }
    float largest = simd::largest(most);
    for (int64_t i = whole; i < count; ++i) {
      const float logit = simd::to_float(logits[i]);
      largest = largest < logit ? logit : largest;
    }
    constexpr float kMin = -87;  // exp(-87) is about 1e-38
    Lanes total = simd::all(0);
    for (int64_t i = 0; i < whole; i += simd::kLanes) {
      const Lanes value =
          simd::exponential(simd::most(simd::load(logits + i) - largest, kMin));
      total = total + value;
      simd::store(value, scratch + i);
    }
    float sum = simd::sum(total);
    if (whole < count) {
      const int64_t rest = count - whole;
      const Lanes value = simd::exponential(
          simd::most(simd::load(logits + whole, rest) - largest, kMin));
      simd::store(value, scratch + whole, rest);
      for (int64_t i = whole; i < count; ++i) sum += scratch[i];
    }
    rows.losses[row] =
        static_cast<double>(weight) *
        (std::log(static_cast<double>(sum)) -
         (static_cast<double>(chosen) - static_cast<double>(largest)));
    if (!rows.keeps_gradient) return;
    const float scale = weight / sum;
    for (int64_t i = 0; i < whole; i += simd::kLanes) {
      simd::store(simd::load(scratch + i) * scale, logits + i);
    }
    if (whole < count) {
      const int64_t rest = count - whole;
      simd::store(simd::load(scratch + whole, rest) * scale, logits + whole,
                  rest);
    }
    logits[target] = static_cast<T>((scratch[target] * scale) - weight);
  }
};

}  // namespace

double cross_entropy_of_rows(const Tensor& logits, const Tensor& targets,
                             const Tensor& weights, bool keeps_gradient) {
  const int64_t vocabulary = logits.size(1);
  const Tensor classes = targets.contiguous();
  const Tensor factors = weights.contiguous();
  std::vector<double> losses(static_cast<size_t>(logits.size(0)));
  with_type(logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const LogitRows<T> rows{logits.mutable_data_ptr<T>(),
                            classes.const_data_ptr<int64_t>(),
                            factors.const_data_ptr<float>(),
                            losses.data(),
                            vocabulary,
                            keeps_gradient};
    intra_op_for(logits.size(0), [&](int64_t first, int64_t last) {
      const Tensor scratch = torch::empty({vocabulary}, torch::kFloat32);
      simd::run<CrossEntropyRows, const LogitRows<T>*>(
          &rows, scratch.mutable_data_ptr<float>(), first, last);
    });
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum;
}

}  // namespace lockstep::models
