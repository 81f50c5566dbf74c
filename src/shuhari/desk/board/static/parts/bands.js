// Curves with a band: {x, mean, low, high, n} by name, as a chart of plotly.

import { COLOURS, plain } from "../chart.js";

const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];

/** The traces of curves by name: a line with its band each; lines differ by colour and by dash. */
export function traceBands(curves) {
  return Object.entries(curves).flatMap(([name, curve], i) => {
    const colour = COLOURS[i % COLOURS.length], line = { color: colour, width: 2, dash: DASHES[i % DASHES.length] };
    const label = curve.n > 1 ? `${name} (n = ${curve.n})` : name;
    const edge = { x: curve.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: name };
    const band = curve.n > 1 ? [{ ...edge, y: curve.low }, { ...edge, y: curve.high, fill: "tonexty", fillcolor: `${colour}2e` }] : [];
    return [...band, { x: curve.x, y: curve.mean, name: plain(label), mode: curve.x.length < 40 ? "lines+markers" : "lines",
      marker: { size: 4 }, line, legendgroup: name, hovertemplate: "%{y:.4g}" }];
  });
}

/** The layout of such a chart: what its axes are called, with room for the legend below. */
export function layBands(x, y, height = 340) {
  return { height, margin: { l: 48, r: 12, t: 20, b: 60 }, legend: { orientation: "h", y: -80 / height, yanchor: "top" },
    xaxis: { title: { text: plain(x), standoff: 6 } }, yaxis: { title: { text: plain(y) } } };
}
