// Draws the curves of the report page by uPlot, from the JSON beside it, in the colors of the theme.
"use strict";
(() => {
  const HEIGHT = 220; // pixels of a chart without its legend
  const DOTS = 60; // points up to which each has a dot
  const COLORS = 8;
  const charts = JSON.parse(document.getElementById("data").textContent).charts;
  const places = [...document.querySelectorAll("[data-chart]")];
  const drawn = new Map();
  const root = document.documentElement;
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const byTime = () => document.querySelector("input[name=by][value=time]").checked;

  function number(value, digits = 5) {
    const size = Math.abs(value);
    if (size > 0 && size < 1e-3) return value.toExponential(digits - 3);
    return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.trunc(Math.log10(size + 1)) + 1) });
  }

  function bytes(value, digits = 4) {
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (Math.abs(value) >= size) return `${number(value / size, digits)} ${unit}`;
    }
    return `${Math.round(value)} B`;
  }

  // Numbers along an axis, with as many digits as tell them apart.
  function ticks(values, told) {
    for (let digits = 4; digits < 15; digits++) {
      const found = values.map((value) => told(value, digits));
      if (new Set(found).size === found.length) return found;
    }
    return values.map(String);
  }

  // Pixels that labels beside an axis take, with its ticks.
  function widest(labels) {
    return Math.max(56, 20 + 7 * Math.max(...labels.map((label) => label.length)));
  }

  // The unit in which times up to so many seconds are read.
  function unitOf(most_s) {
    return most_s > 3 * 3600 ? ["h", 3600] : most_s > 180 ? ["min", 60] : ["s", 1];
  }

  function look(curve, i) {
    const own = curve.run === null ? (curve.training ? 0 : 1) + 2 * Math.floor(i / 2) : curve.run;
    return {
      stroke: color(`--c${own % COLORS}`),
      width: curve.run !== null && curve.thin ? 1 : 1.8,
      dash: curve.run !== null && curve.thin ? [4, 3] : undefined,
    };
  }

  // Of a series the point nearest to the pointer, for series have points at different places.
  function nearest(plot, series, at) {
    const values = plot.data[series];
    for (let away = 0; away < values.length; away++) {
      for (const i of [at - away, at + away]) if (values[i] != null) return i;
    }
    return at;
  }

  function draw(place) {
    const chart = charts[Number(place.dataset.chart)];
    const time = byTime();
    const [unit, seconds] = unitOf(Math.max(...chart.curves.map((curve) => curve.time[curve.time.length - 1] ?? 0)));
    const tables = chart.curves.map((curve) => [time ? curve.time.map((s) => s / seconds) : curve.step, curve.value]);
    const ends = tables.flatMap(([x]) => [x[0], x[x.length - 1]]);
    const range = [Math.min(...ends), Math.max(...ends)];
    const told = chart.bytes ? bytes : number;
    const say = (plot, value) => (value == null ? "" : told(value));
    const axis = { stroke: color("--muted"), font: "12px system-ui", grid: { stroke: color("--line"), width: 1 } };
    const series = chart.curves.map((curve, i) => ({
      ...look(curve, i),
      label: curve.name,
      value: say,
      spanGaps: true,
      points: { show: curve.value.length <= DOTS, size: 5, fill: look(curve, i).stroke },
    }));
    for (const [name, level] of chart.levels) {
      const line = { label: name, stroke: color("--muted"), width: 1.4, dash: [8, 5], value: say, spanGaps: true };
      series.push({ ...line, points: { show: false } });
      tables.push([range, [level, level]]);
    }
    drawn.get(place)?.destroy();
    const options = {
      width: place.clientWidth,
      height: HEIGHT,
      scales: { x: { time: false } },
      axes: [
        { ...axis, size: 34, space: 46, values: (plot, splits) => ticks(splits, number).map((x) => (time ? `${x} ${unit}` : x)) },
        { ...axis, size: (plot, labels) => widest(labels ?? []), space: 36, values: (plot, splits) => ticks(splits, told) },
      ],
      cursor: { y: false, dataIdx: nearest, sync: { key: "curves" }, points: { size: 7 } },
      legend: { markers: { dash: (plot, i) => (plot.series[i].dash ? "dashed" : "solid") } },
      series: [{ label: time ? unit : "step", value: say }, ...series],
    };
    drawn.set(place, new uPlot(options, uPlot.join(tables), place));
  }

  const drawAll = () => places.forEach(draw);

  function forPrint(on) {
    root.classList.toggle("print", on);
    for (const fold of document.querySelectorAll("details:not(.numbers)")) {
      if (on && !fold.open) fold.dataset.opened = "";
      if (on || "opened" in fold.dataset) fold.open = on;
      if (!on) delete fold.dataset.opened;
    }
    drawAll();
  }

  const choice = document.querySelector(".switch");
  if (choice === null) return;
  choice.hidden = false;
  choice.addEventListener("change", drawAll);
  media.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => forPrint(true));
  window.addEventListener("afterprint", () => forPrint(false));
  new ResizeObserver(() => {
    for (const [place, plot] of drawn) {
      if (plot.width !== place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT });
    }
  }).observe(document.querySelector("main"));
  drawAll();
})();
