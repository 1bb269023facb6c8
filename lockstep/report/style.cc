#include "lockstep/report/style.h"

namespace lockstep::report {
namespace {

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

// The phases that compute are blue, those that move data warm, so that the
// overhead is seen before a label is read.
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

constexpr const char* kPage = R"(
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 714px; padding: 1rem 16px 3rem;
  background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1, h2, h3, p, li, caption, figcaption { overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 0.4rem; }
a { color: var(--link); }
.skip { position: absolute; left: -100vw; top: 0; padding: 0.5rem 1rem;
  background: var(--paper); z-index: 1; }
.skip:focus { left: 0; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.method, footer { color: var(--muted); font-size: 0.85rem; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.3rem 1.1rem; padding: 0;
  margin: 0.8rem 0; list-style: none; }
nav a { display: inline-block; padding: 0.2rem 0; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; min-width: 100%;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--muted); font-size: 0.85rem;
  padding-bottom: 0.2rem; }
th, td { padding: 0.3rem 0.7rem 0.3rem 0; text-align: right;
  vertical-align: top; border-bottom: 1px solid var(--rule);
  white-space: pre; font-weight: 400; }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--muted); font-weight: 500; font-size: 0.85rem; }
.left { text-align: left; }
.prose th, .prose td { white-space: normal; overflow-wrap: anywhere;
  min-width: 7rem; text-align: left; }
tbody th { text-align: left; white-space: normal; overflow-wrap: anywhere;
  min-width: 6rem; max-width: 12rem; }
pre { margin: 0; padding: 0.6rem 0.8rem; background: var(--code);
  font: 13px/1.5 ui-monospace, monospace; }
figure { margin: 1rem 0; }
figcaption { font-size: 0.9rem; font-weight: 500; margin-bottom: 0.4rem; }
figcaption small { display: block; color: var(--muted); font-weight: 400;
  font-size: 0.85rem; }
details { margin-top: 0.3rem; font-size: 0.9rem; }
summary { color: var(--link); cursor: pointer; padding: 0.2rem 0; }
svg { display: block; }
.for-narrow { display: none; overflow-x: auto; }
@media (max-width: 711px) {
  .for-wide { display: none; } .for-narrow { display: block; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  nav, .skip { display: none; }
  .for-wide { display: block; } .for-narrow { display: none; }
  .for-wide svg { max-width: 100%; height: auto; }
  .scroll { overflow: visible; }
  th, td { white-space: pre-wrap; overflow-wrap: anywhere; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere;
    border: 1px solid var(--rule); }
  figure, tr, pre, li { break-inside: avoid; }
  h1, h2, h3, caption, figcaption { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)";

}  // namespace

std::string run_class(size_t index) {
  return "run" + std::to_string(index % kRunColours);
}

// On paper it is always light.
std::string style_sheet() {
  return std::string("svg, :root {") + kLight +
         "}\n@media screen and (prefers-color-scheme: dark) {\nsvg, :root {" +
         kDark + "} }" + kCharts;
}

std::string page_style() {
  return std::string(":root { color-scheme: light dark; }") + kPage;
}

}  // namespace lockstep::report
