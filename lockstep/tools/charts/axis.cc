#include "lockstep/tools/charts/axis.h"

#include <cmath>

#include <fmt/format.h>

namespace lockstep::tools {

std::vector<double> marks_between(double low, double high, int most) {
  if (!(high > low) || most < 1) return {low};
  const double least = (high - low) / most;
  double step = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (factor * step < least) continue;
    step *= factor;
    break;
  }
  std::vector<double> marks;
  const double first = std::ceil(low / step);
  for (int i = 0; i <= most + 1 && (first + i) * step <= high; ++i) {
    marks.push_back((first + i) * step + 0.0);  // not -0
  }
  if (marks.empty()) marks.push_back(low);
  return marks;
}

std::string mark_label(double seconds) {
  return fmt::format("{:.6g}", seconds * 1e3);
}

}  // namespace lockstep::tools
