// Line charts as SVG, as wide as their parent; colours come from the style sheet.

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

/**
 * Draw lines [{row, points: [[x, y], …]}] with y from 0 to 1. `limit` is a value of y to mark, `unit` is written after
 * the last x, and the label of `place` above the chart. Return a function that draws a cursor at x, or removes it if null.
 */
function chart(place, lines, { limit, unit, height }) {
  const width = Math.max(place.clientWidth, 200);
  const points = lines.flatMap((line) => line.points);
  const xs = points.map((point) => point[0]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const [y0, y1] = [0, 1];
  const yTicks = ticks(y0, y1, 4);
  const yLabels = labels(yTicks);
  const longest = Math.max(0, ...yLabels.map((label) => label.length));
  const [left, right, top, bottom] = [Math.max(40, 7.5 * longest + 9), 12, 24, 22];
  const atX = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const atY = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, height });
  drawing.append(svg("text", { x: left, y: 12 }, place.getAttribute("aria-label")));
  for (const [i, tick] of yTicks.entries()) {
    drawing.append(svg("path", { class: "grid", d: `M${left} ${atY(tick)}H${width - right}` }));
    drawing.append(svg("text", { x: left - 7, y: atY(tick) + 4, "text-anchor": "end" }, yLabels[i]));
  }
  const xTicks = ticks(x0, x1, Math.max(width / 110, 2));
  const xLabels = labels(xTicks);
  for (const [i, tick] of xTicks.entries()) {
    const last = i === xTicks.length - 1;
    const [x, anchor] = last && atX(tick) > width - 60 ? [width - 2, "end"] : [atX(tick), "middle"];
    drawing.append(svg("text", { x, y: height - 5, "text-anchor": anchor }, xLabels[i] + (last ? unit : "")));
  }
  if (limit !== null) drawing.append(svg("path", { class: "limit", d: `M${left} ${atY(limit)}H${width - right}` }));
  for (const { row, points: line } of lines) {
    const clip = (value) => Math.min(Math.max(value, y0), y1);
    const path = line.map(([x, value], i) => `${i ? "L" : "M"}${atX(x).toFixed(1)} ${atY(clip(value)).toFixed(1)}`);
    const group = svg("g", { class: `s${row % DATA.colours}` });
    group.append(svg("path", { class: "line", d: path.join("") }));
    const [endX, endY] = line.at(-1);
    group.append(svg("circle", { class: "end", cx: atX(endX), cy: atY(clip(endY)), r: 3.2 }));
    drawing.append(group);
  }
  const now = svg("path", { class: "now" });
  drawing.append(now);
  place.replaceChildren(drawing);
  return (x) => now.setAttribute("d", x === null ? "" : `M${atX(Math.min(x, x1))} ${top}V${height - bottom}`);
}

/** Return the coloured mark of a row. */
function markOf(row) {
  const symbol = DATA.marks[row % DATA.marks.length];
  return make("span", { class: `mark s${row % DATA.colours}`, "aria-hidden": "true" }, symbol);
}
