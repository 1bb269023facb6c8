// Returns what is wrong with a page, as a list of sentences. check_page.py runs
// this in a browser.
const found = [];
const visible = element => {
  const style = getComputedStyle(element);
  if (style.visibility === 'hidden' || style.display === 'none') return false;
  const box = element.getBoundingClientRect();
  return box.width > 0 && box.height > 0;
};
const name = element =>
  `<${element.tagName.toLowerCase()} class="` +
  `${element.getAttribute('class') || ''}"> ` +
  `'${(element.textContent || '').trim().slice(0, 40)}'`;

// Only elements that scroll may be wider than the screen.
const root = document.documentElement;
if (root.scrollWidth > innerWidth) {
  found.push(`the page is ${root.scrollWidth} pixels wide, the screen ` +
             `${innerWidth}`);
}
for (const element of document.querySelectorAll('body *')) {
  if (!visible(element) || element.closest('.scroll') ||
      element.closest('.skip')) continue;
  const box = element.getBoundingClientRect();
  if (box.right > innerWidth + 0.5 || box.left < -0.5) {
    found.push(`${name(element)} goes from ${box.left} to ${box.right}`);
  }
}

// The main results of a comparison are visible without scrolling.
const speedUp = [...document.querySelectorAll('th')].find(
    cell => cell.textContent.startsWith('Speed-up') && visible(cell));
if (speedUp && speedUp.getBoundingClientRect().right > innerWidth) {
  found.push('the column of the speed-ups is out of view');
}

// The texts of a chart are inside of it, don't overlap, and are large enough.
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
      // The spacing of text lines may touch.
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
  if (shown.length !== 1) {
    found.push(`${name(figure)} shows ${shown.length} charts`);
  }
  if (!figure.querySelector('figcaption')) {
    found.push(`${name(figure)} has no caption`);
  }
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
    if (ratio < 4.5) {
      low.add(`${name(element)} has a contrast of ${ratio.toFixed(2)}`);
    }
  }
  const is_shape = ['rect', 'circle', 'path'].includes(element.tagName);
  if (is_shape && !element.classList.contains('area')) {
    const colour = style.fill !== 'none' ? style.fill : style.stroke;
    const ratio = contrast(channels(colour), behind(element));
    if (ratio < 3) {
      low.add(`a ${element.tagName} of class ` +
              `${element.getAttribute('class')} has a contrast of ` +
              ratio.toFixed(2));
    }
  }
}
found.push(...low);

// Properties that a screen reader needs.
if (document.querySelectorAll('h1').length !== 1) {
  found.push('there is not one h1');
}
if (!root.lang) found.push('the page has no language');
if (!document.querySelector('main') || !document.querySelector('nav')) {
  found.push('main or nav is missing');
}
for (const table of document.querySelectorAll('table')) {
  if (!table.caption || !table.caption.textContent.trim()) {
    found.push(`${name(table)} has no caption`);
  }
  for (const cell of table.querySelectorAll('th')) {
    if (!['row', 'col'].includes(cell.scope)) {
      found.push(`${name(cell)} has no scope`);
    }
  }
  if (!table.querySelector('th[scope=row]') ||
      !table.querySelector('th[scope=col]')) {
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
const loaded =
    performance.getEntriesByType('resource').map(entry => entry.name);
if (loaded.length > 0) found.push(`the page loads ${loaded}`);
return found;
