#!/usr/bin/python3
"""Opens pages in headless Chromium and prints what is wrong with them.

    check_page.py [--screenshots PREFIX] PAGE...

It checks each page at 390 and at 1280 pixels, light and dark: no error in the
console, nothing loaded from elsewhere, nothing wider than the screen, no texts
of a chart that overlap or leave it, letters of 11 pixels or more, the contrasts
that WCAG 2 asks for (AA), tables with captions and scopes, and everything that
scrolls can be reached with the Tab key. Exits with 1 if it found a problem, and
with 77 if there is no browser.
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

# Returns a list of sentences, which is empty if all is well.
LOOK = (pathlib.Path(__file__).parent / "look_at_page.js").read_text(
    encoding="utf-8")

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
    """Returns what is wrong when the Tab key moves through the page."""
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
    """Checks the printed page: light, figures not split, and nothing cut off at
    the side.
    """
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
    """Saves the top of the page in a few colours, for documents."""
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
