// Draws the charts of a page with uPlot, from the JSON in their attribute data-chart.
"use strict";

(() => {
  const HEIGHT = 240;
  const COLORS = ["--part-1", "--part-6"];
  const drawn = new Map();

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = new Intl.NumberFormat();
  const short = new Intl.NumberFormat(undefined, { notation: "compact" });
  const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
  const hour = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

  const DAY_S = 86400;
  const tickLabel = (seconds, step) => {
    const time = new Date(seconds * 1000);
    return step >= DAY_S || time.getHours() + time.getMinutes() === 0 ? day.format(time) : hour.format(time);
  };

  const options = (chart, width) => {
    const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 } };
    return {
      width,
      height: HEIGHT,
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [{ ...axis, values: (_, ticks, __, ___, step) => ticks.map((tick) => tickLabel(tick, step)) }, { ...axis, size: 60, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? short.format(tick) : "")) }],
      series: [
        { label: "From", value: (_, value) => (value == null ? "" : moment.format(new Date(value * 1000))) },
        ...chart.series.map((series, index) => ({
          label: series.label,
          stroke: style(COLORS[index % COLORS.length]),
          width: 2,
          points: { size: 6 },
          value: (_, value) => (value == null ? "" : number.format(value)),
        })),
      ],
    };
  };

  const draw = (element) => {
    drawn.get(element)?.destroy();
    const chart = JSON.parse(element.dataset.chart);
    const data = [chart.times, ...chart.series.map((series) => series.values)];
    drawn.set(element, new uPlot(options(chart, element.clientWidth), data, element));
  };
  const drawAll = () => document.querySelectorAll("[data-chart]").forEach(draw);

  document.addEventListener("DOMContentLoaded", drawAll);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.addEventListener("resize", () => {
    for (const [element, plot] of drawn) plot.setSize({ width: element.clientWidth, height: HEIGHT });
  });
})();
