#!/usr/bin/python3
"""Opens pages in headless Chromium and says what is wrong with them.

    check_page.py [--screenshots PREFIX] PAGE...

At 390 and at 1280 pixels, light and dark: no error in the console, nothing
loaded from elsewhere, nothing wider than the screen, no two texts of a chart
on each other or outside of it, letters of 11 pixels or more, the contrasts
that WCAG 2 asks for (AA), tables with captions and scopes, and everything that
scrolls can be reached with the Tab key. Ends with 1 after printing what it
found, with 77 where there is no browser.
"""

import argparse
import pathlib
import sys

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError as error:
    print(f"no browser to look at pages with: {error}; "
          "apt-get install chromium chromium-driver python3-selenium")
    sys.exit(77)

CHROMIUM = pathlib.Path("/usr/bin/chromium")
DRIVER = pathlib.Path("/usr/bin/chromedriver")
SIZES = {"390": (390, 844), "1280": (1280, 800)}
SCHEMES = ("light", "dark")

# Every function returns a list of sentences, empty where all is well.
LOOK = r"""
const found = [];
const visible = element => {
  const style = getComputedStyle(element);
  if (style.visibility === 'hidden' || style.display === 'none') return false;
  const box = element.getBoundingClientRect();
  return box.width > 0 && box.height > 0;
};
const name = element =>
  `<${element.tagName.toLowerCase()} class="${element.getAttribute('class') || ''}"> ` +
  `'${(element.textContent || '').trim().slice(0, 40)}'`;

// Nothing is wider than the screen but what scrolls by itself.
const root = document.documentElement;
if (root.scrollWidth > innerWidth) {
  found.push(`the page is ${root.scrollWidth} pixels wide, the screen ${innerWidth}`);
}
for (const element of document.querySelectorAll('body *')) {
  if (!visible(element) || element.closest('.scroll') ||
      element.closest('.skip')) continue;
  const box = element.getBoundingClientRect();
  if (box.right > innerWidth + 0.5 || box.left < -0.5) {
    found.push(`${name(element)} goes from ${box.left} to ${box.right}`);
  }
}

// The texts of a chart: inside of it, apart from each other, large enough.
let texts = 0;
for (const svg of document.querySelectorAll('svg')) {
  if (!visible(svg)) continue;
  const frame = svg.getBoundingClientRect();
  const scale = frame.width / svg.viewBox.baseVal.width;
  const boxes = [...svg.querySelectorAll('text')].map(
      text => [text, text.getBoundingClientRect()]);
  texts += boxes.length;
  boxes.forEach(([text, box], i) => {
    const size = parseFloat(getComputedStyle(text).fontSize) * scale;
    if (size < 11) found.push(`${name(text)} has letters of ${size} pixels`);
    if (box.left < frame.left - 1 || box.right > frame.right + 1 ||
        box.top < frame.top - 1 || box.bottom > frame.bottom + 1) {
      found.push(`${name(text)} is cut at the edge of its chart`);
    }
    for (const [other, beside] of boxes.slice(i + 1)) {
      const across = Math.min(box.right, beside.right) -
                     Math.max(box.left, beside.left);
      const down = Math.min(box.bottom, beside.bottom) -
                   Math.max(box.top, beside.top);
      // Lines of text may touch with their spare room.
      if (across > 1 && down > 4) {
        found.push(`${name(text)} is on ${name(other)}`);
      }
    }
  });
}
if (document.querySelector('figure') && texts === 0) {
  found.push('no chart with text is visible');
}
for (const figure of document.querySelectorAll('figure')) {
  const shown = [...figure.querySelectorAll('svg')].filter(visible);
  if (shown.length !== 1) found.push(`${name(figure)} shows ${shown.length} charts`);
  if (!figure.querySelector('figcaption')) found.push(`${name(figure)} has no caption`);
}

// Contrast, as WCAG 2.2 computes it.
const channels = colour => colour.match(/[\d.]+/g).map(Number);
const luminance = ([r, g, b]) => {
  const linear = [r, g, b].map(c => {
    const x = c / 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const contrast = (a, b) => {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const behind = element => {
  for (let at = element; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const low = new Set();
for (const element of document.querySelectorAll('body *')) {
  if (!visible(element)) continue;
  const own = [...element.childNodes].some(
      node => node.nodeType === 3 && node.textContent.trim());
  const style = getComputedStyle(element);
  const in_svg = element instanceof SVGElement;
  if (own && !(in_svg && element.tagName !== 'text')) {
    const ratio = contrast(channels(in_svg ? style.fill : style.color),
                           behind(element));
    if (ratio < 4.5) low.add(`${name(element)} has a contrast of ${ratio.toFixed(2)}`);
  }
  const is_shape = ['rect', 'circle', 'path'].includes(element.tagName);
  if (is_shape && !element.classList.contains('area')) {
    const colour = style.fill !== 'none' ? style.fill : style.stroke;
    const ratio = contrast(channels(colour), behind(element));
    if (ratio < 3) low.add(`a ${element.tagName} of class ` +
        `${element.getAttribute('class')} has a contrast of ${ratio.toFixed(2)}`);
  }
}
found.push(...low);

// What a screen reader needs.
if (document.querySelectorAll('h1').length !== 1) found.push('there is not one h1');
if (!root.lang) found.push('the page has no language');
if (!document.querySelector('main') || !document.querySelector('nav')) {
  found.push('main or nav is missing');
}
for (const table of document.querySelectorAll('table')) {
  if (!table.caption || !table.caption.textContent.trim()) {
    found.push(`${name(table)} has no caption`);
  }
  for (const cell of table.querySelectorAll('th')) {
    if (!['row', 'col'].includes(cell.scope)) found.push(`${name(cell)} has no scope`);
  }
  if (!table.querySelector('th[scope=row]') || !table.querySelector('th[scope=col]')) {
    found.push(`${name(table)} lacks headers`);
  }
}
for (const svg of document.querySelectorAll('svg')) {
  const told = (svg.getAttribute('aria-labelledby') || '').split(' ').map(
      id => document.getElementById(id));
  if (svg.getAttribute('role') !== 'img' || told.length < 2 ||
      told.some(part => !part || !part.textContent.trim())) {
    found.push(`${name(svg)} says nothing to a screen reader`);
  }
}
const ids = [...document.querySelectorAll('[id]')].map(element => element.id);
if (new Set(ids).size !== ids.length) found.push('an id is there twice');
for (const link of document.querySelectorAll('a')) {
  if (!document.getElementById(link.getAttribute('href').slice(1))) {
    found.push(`${name(link)} leads nowhere`);
  }
}
for (const wide of document.querySelectorAll('.scroll')) {
  if (wide.tabIndex !== 0 || !wide.getAttribute('aria-label')) {
    found.push(`${name(wide)} can't be reached, or has no name`);
  }
}
if (document.scripts.length > 0) found.push('the page has a script');
const loaded = performance.getEntriesByType('resource').map(entry => entry.name);
if (loaded.length > 0) found.push(`the page loads ${loaded}`);
return found;
"""

UNFOLD = """
for (const part of document.querySelectorAll('details')) part.open = true;
"""

SCROLLING = """
return [...document.querySelectorAll('.scroll')].filter(
    e => e.getBoundingClientRect().height > 0).length;
"""
FOCUSED = """
const at = document.activeElement;
if (at === document.body) return null;
const style = getComputedStyle(at);
return [at.className, at.getAttribute('aria-label') || at.textContent.trim(),
        style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2];
"""


def open_browser():
    options = Options()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu",
                     "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--force-device-scale-factor=1"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(service=Service(str(DRIVER)), options=options)
    browser.set_page_load_timeout(60)
    browser.set_script_timeout(60)
    return browser


def emulate(browser, size, scheme):
    width, height = size
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 1,
        "mobile": width < 500})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "media": "screen",
        "features": [{"name": "prefers-color-scheme", "value": scheme}]})


def walk_by_keys(browser):
    """What is wrong when the page is walked through with the Tab key."""
    wanted = browser.execute_script(SCROLLING)
    seen = []
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    for _ in range(wanted + 200):
        at = browser.execute_script(FOCUSED)
        if at is None:
            break
        seen.append(at)
        browser.switch_to.active_element.send_keys(Keys.TAB)
    found = []
    if not seen or seen[0][0] != "skip":
        found.append("the first stop is not the link to the content")
    reached = sum(1 for class_name, _, _ in seen if class_name == "scroll")
    if reached != wanted:
        found.append(f"{reached} of {wanted} scroll regions have a Tab stop")
    found += [f"'{label[:40]}' does not show that it has the focus"
              for _, label, has_outline in seen if not has_outline]
    return found


def look_at_print(browser):
    """On paper: light, in whole figures, and nothing cut at the side."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "media": "print",
        "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False})
    return browser.execute_script("""
      const found = [];
      const root = document.documentElement;
      if (root.scrollWidth > innerWidth) {
        found.push(`a page of paper is ${root.scrollWidth} pixels wide`);
      }
      const paper = getComputedStyle(document.body).backgroundColor;
      if (paper !== 'rgb(255, 255, 255)') found.push(`paper is ${paper}`);
      for (const part of document.querySelectorAll('figure, tr')) {
        if (getComputedStyle(part).breakInside !== 'avoid') {
          found.push(`${part.tagName} may be cut between two pages`);
        }
      }
      return found;""")


def check(browser, page, screenshots):
    url = pathlib.Path(page).resolve().as_uri()
    found = []
    for size_name, size in SIZES.items():
        for scheme in SCHEMES:
            emulate(browser, size, scheme)
            browser.get(url)
            where = f"{page} at {size_name}, {scheme}: "
            if screenshots and scheme == "light":
                save_screenshot(browser, size, f"{screenshots}-{size_name}.png")
            browser.execute_script(UNFOLD)
            found += [where + text for text in browser.execute_script(LOOK)]
            found += [where + "console: " + entry["message"]
                      for entry in browser.get_log("browser")]
            if scheme == "light":
                found += [where + text for text in walk_by_keys(browser)]
    found += [f"{page} in print: " + text for text in look_at_print(browser)]
    return found


def save_screenshot(browser, size, path):
    """The top of the page, in a few colours: for documents."""
    import base64
    height = min(browser.execute_script(
        "return document.documentElement.scrollHeight"), 3 * size[1])
    picture = browser.execute_cdp_cmd("Page.captureScreenshot", {
        "format": "png", "captureBeyondViewport": True,
        "clip": {"x": 0, "y": 0, "width": size[0], "height": height,
                 "scale": 1}})
    pathlib.Path(path).write_bytes(base64.b64decode(picture["data"]))
    print(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--screenshots", help="write PREFIX-390.png, ...")
    parser.add_argument("pages", nargs="+")
    arguments = parser.parse_args()
    missing = [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]
    if missing:
        print(f"no browser to look at pages with: {' and '.join(missing)} "
              "missing; apt-get install chromium chromium-driver")
        return 77
    browser = open_browser()
    try:
        found = [text for page in arguments.pages
                 for text in check(browser, page, arguments.screenshots)]
    finally:
        browser.quit()
    for text in found:
        print(text)
    print(f"{len(arguments.pages)} pages, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
