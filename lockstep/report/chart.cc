#include "lockstep/report/chart.h"

namespace lockstep::report {

void label_row(Canvas& canvas, const std::string& label) {
  canvas.text(kBarX - 10, canvas.y + kBarHeight - 2, label, "",
              Canvas::Anchor::kEnd);
}

void draw_legend(Canvas& canvas, const std::vector<LegendEntry>& entries) {
  double x = kBarX;
  for (const auto& [name, css_class] : entries) {
    canvas.rectangle(x, canvas.y, 10, 10, css_class, name);
    canvas.text(x + 14, canvas.y + 9, name, "small");
    x += 26 + 7.2 * static_cast<double>(name.size());
  }
  canvas.y += kRow;
}

}  // namespace lockstep::report
