#include "lockstep/report/charts/canvas.h"

namespace lockstep::report {
namespace {

constexpr size_t kRunColours = 6;

constexpr const char* kLight = R"(
  --ink: #1f2328; --muted: #59636e; --paper: #ffffff; --rule: #d1d9e0;
  --link: #0a58ca; --code: #f3f5f7;
  --run0: #0072b2; --run1: #c2410c; --run2: #007a5a; --run3: #a23b78;
  --run4: #8a5a00; --run5: #4b5563;
  --scatter: #a86a00; --replicate: #c2410c; --forward: #3d85c6;
  --gather: #b8457a; --backward: #1f4e8c; --reduce: #8b46b0;
  --update: #2f7d4f; --wait: #8b949e;
)";

constexpr const char* kDark = R"(
  --ink: #e6edf3; --muted: #9198a1; --paper: #0d1117; --rule: #3d444d;
  --link: #79b8ff; --code: #161b22;
  --run0: #56b4e9; --run1: #ff9e64; --run2: #2fd3a5; --run3: #e89ac7;
  --run4: #f0c04a; --run5: #b6bec9;
  --scatter: #efb13e; --replicate: #f08a4b; --forward: #8cc2f0;
  --gather: #e58bb3; --backward: #4f8fd6; --reduce: #bd86d8;
  --update: #63b987; --wait: #7d8590;
)";

// Phases that compute are blue and phases that move data have warm colours, so
// the overhead is visible before a label is read.
constexpr const char* kCharts = R"(
svg text { fill: var(--ink); font: 13px system-ui, sans-serif;
  font-variant-numeric: tabular-nums; }
svg .title { font-weight: 600; font-size: 14px; }
svg .head, svg .small, svg .value, svg .note { fill: var(--muted); }
svg .small, svg .note { font-size: 12px; }
svg .rule { stroke: var(--rule); }
svg .mark { stroke: var(--ink); stroke-width: 1.5; }
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .thin { stroke-width: 1.5; }
svg .area { stroke: none; fill-opacity: 0.2; }
svg .run0 { fill: var(--run0); } svg .run1 { fill: var(--run1); }
svg .run2 { fill: var(--run2); } svg .run3 { fill: var(--run3); }
svg .run4 { fill: var(--run4); } svg .run5 { fill: var(--run5); }
svg .curve.run0 { fill: none; stroke: var(--run0); }
svg .curve.run1 { fill: none; stroke: var(--run1); stroke-dasharray: 7 3; }
svg .curve.run2 { fill: none; stroke: var(--run2); stroke-dasharray: 2 3; }
svg .curve.run3 { fill: none; stroke: var(--run3);
  stroke-dasharray: 9 3 2 3; }
svg .curve.run4 { fill: none; stroke: var(--run4); stroke-dasharray: 12 4; }
svg .curve.run5 { fill: none; stroke: var(--run5); stroke-dasharray: 4 4; }
svg .shared { fill: var(--muted); }
svg .curve.shared { fill: none; stroke: var(--muted); stroke-dasharray: 3 2; }
svg .scatter { fill: var(--scatter); }
svg .replicate { fill: var(--replicate); }
svg .forward { fill: var(--forward); } svg .gather { fill: var(--gather); }
svg .backward { fill: var(--backward); } svg .reduce { fill: var(--reduce); }
svg .update { fill: var(--update); } svg .wait { fill: var(--wait); }
)";

}  // namespace

std::string run_class(size_t index) {
  return "run" + std::to_string(index % kRunColours);
}

// A printed page always has the light colours.
std::string style_sheet() {
  return std::string("svg, :root {") + kLight +
         "}\n@media screen and (prefers-color-scheme: dark) {\nsvg, :root {" +
         kDark + "} }" + kCharts;
}

}  // namespace lockstep::report
