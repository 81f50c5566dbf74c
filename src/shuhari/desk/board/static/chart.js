// Curves by plotly.js, which is loaded when the first is drawn. Colours are those of the theme.

let loading = null;
const drawn = new Set();

function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      loading = null; // the next chart tries again
      script.remove();
      reject(new Error("plotly.js could not be loaded"));
    };
    document.head.append(script);
  });
  return loading;
}

// Few buttons, as each is a stop of the keyboard; and none that sends a chart to a server of plotly's, which it has by default.
const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, showEditInChartStudio: false, plotlyServerURL: "",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], toImageButtonOptions: { format: "png", scale: 2 } };
export const COLOURS = ["#3b82c4", "#d97706", "#2f9e6e", "#c0504d", "#8b6fc0", "#8c6d4f", "#c265a5", "#6b7280"];

function themed(layout) {
  const style = getComputedStyle(document.documentElement), of = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: of("--line"), zerolinecolor: of("--line"), linecolor: of("--line"), automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: of("--text"), size: 12 },
    margin: { l: 48, r: 12, t: 34, b: 40 }, height: 260, hovermode: "x unified", colorway: COLOURS,
    legend: { orientation: "h", y: -0.25 }, ...layout,
    xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
  };
}

/** Draw traces into an element, or draw them anew there; the theme is followed for as long as it is on the page. */
export async function draw(element, traces, layout = {}) {
  const Plotly = await load();
  for (const old of drawn)
    if (!old.isConnected) { Plotly.purge(old); drawn.delete(old); }
  if (!element.isConnected) return;
  drawn.add(element);
  element.chart = { traces, layout };
  await Plotly.react(element, traces, themed(layout), CONFIG);
}

/** Move the one line that stands in a chart to x. */
export function mark(element, x) {
  if (!element.chart?.layout.shapes?.length) return;
  Object.assign(element.chart.layout.shapes[0], { x0: x, x1: x });
  window.Plotly?.relayout(element, { "shapes[0].x0": x, "shapes[0].x1": x });
}

addEventListener("theme", () => {
  for (const element of document.querySelectorAll(".chart"))
    if (element.chart) draw(element, element.chart.traces, element.chart.layout);
});

/** Text for plotly, which reads some markup in names, titles and labels: at most so many characters, and no tag is left. */
export const plain = (text, most = 200) =>
  String(text).slice(0, most).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** An exponential moving average over the values that are numbers; weight 0 leaves them as they are. */
export function smooth(values, weight) {
  let mean = null, mass = 0;
  return values.map((y) => {
    if (!Number.isFinite(y)) return null;
    mean = (mean ?? 0) * weight + y * (1 - weight);
    mass = mass * weight + (1 - weight);
    return mean / mass;
  });
}
