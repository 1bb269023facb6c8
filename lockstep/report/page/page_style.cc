#include "lockstep/report/page/page_style.h"

namespace lockstep::report {
namespace {

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

std::string page_style() {
  return std::string(":root { color-scheme: light dark; }") + kPage;
}

}  // namespace lockstep::report
